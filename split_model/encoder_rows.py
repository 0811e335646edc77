"""What an encoder reads, as rows: a text's token ids, or an image's pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from split_model.checkpoint import Checkpoint
from split_model.device import put
from split_model.end_parts import embedding_parts
from split_model.families.architecture import Patches
from split_model.matrix import Matrix, read_stacked, read_table
from split_model.stack import Embedding


class TextRows:
    """Token ids to rows. Those of a model with token types also tell the text's parts apart."""

    def __init__(self, embedding: Embedding, token_types: torch.Tensor | None) -> None:
        """token_types [types, hidden]."""
        self._embedding, self._token_types = embedding, token_types

    @classmethod
    def load(cls, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device | str = "cpu") -> TextRows:
        """Raises BadCheckpoint."""
        part = embedding_parts(checkpoint.spec).token_types
        token_types = read_table(checkpoint, part, dtype, device) if part else None
        return cls(Embedding.load(checkpoint, dtype, device), token_types)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights held."""
        return self._embedding.loaded_bytes + (0 if self._token_types is None else self._token_types.nbytes)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], types: Sequence[int] | None = None) -> torch.Tensor:
        """ids [rows] -> [rows, hidden]. types: of each token; all 0 where nobody says.

        Raises ValueError for ids and types that the model does not have, or not as many of one as of the other.
        """
        rows = self._embedding.forward(ids)
        if self._token_types is None:
            if types is not None:
                raise ValueError("this model has no token types")
            return rows
        if types is None:
            return rows + self._token_types[0]
        known = len(self._token_types)
        if len(types) != len(ids) or not all(0 <= each < known for each in types):
            raise ValueError(f"token types must be {len(ids)} numbers from 0 to {known - 1}")
        return rows + functional.embedding(put(torch.tensor(types), rows.device), self._token_types)


class PatchRows:
    """Pixels to rows: one that was learned, and one for each patch."""

    def __init__(self, patches: Patches, matrix: Matrix, first_row: torch.Tensor) -> None:
        """matrix: from a patch's numbers to a row. first_row [1, hidden]."""
        self._patches, self._matrix, self._first_row = patches, matrix, first_row

    @classmethod
    def load(cls, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device | str = "cpu") -> PatchRows:
        """Raises BadCheckpoint."""
        parts, patches = embedding_parts(checkpoint.spec), checkpoint.spec.patches
        assert patches is not None and parts.patches is not None and parts.first_row is not None
        matrix = Matrix.load(checkpoint, [parts.patches], [parts.patches_bias], dtype, device)
        return cls(patches, matrix, read_stacked(checkpoint, [parts.first_row], dtype, device))

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights held."""
        return self._matrix.nbytes + self._first_row.nbytes

    @torch.inference_mode()
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels [channels, height, width], as the checkpoint's image processor scales them -> [1 + patches, hidden].

        Raises ValueError for an image of another size.
        """
        (height, width), (tall, wide), channels = self._patches.image, self._patches.patch, self._patches.channels
        if pixels.shape != (channels, height, width):
            raise ValueError(f"pixels are {list(pixels.shape)}; they must be {[channels, height, width]}")
        cut = pixels.reshape(channels, height // tall, tall, width // wide, wide).permute(1, 3, 0, 2, 4)
        numbers = cut.reshape(self._patches.count, channels * tall * wide).to(self._first_row.dtype)
        return torch.cat((self._first_row, self._matrix(put(numbers, self._first_row.device))))
