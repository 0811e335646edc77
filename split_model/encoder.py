"""A model that reads whole texts or images at once: BERT, DistilBERT, ViT; or one that could write and only reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from split_model.batch import Batch
from split_model.cached_batch import CacheBatch
from split_model.checkpoint import Checkpoint
from split_model.encoder_rows import PatchRows, TextRows
from split_model.offload.loader import Loader
from split_model.pooling import Pooling
from split_model.sequences import Sequences
from split_model.slices import whole
from split_model.stack import Span, Stack


@dataclass(frozen=True)
class Encoded:
    """What an encoder says of some sequences.

    Attributes:
        rows: of each sequence, [its rows, hidden].
        pooled: one row for each, [sequences, pooled_size]; None where the model makes none.
        logits: float32 [sequences, labels]; None where the model does not classify.
    """

    rows: tuple[torch.Tensor, ...]
    pooled: torch.Tensor | None
    logits: torch.Tensor | None


class Encoder:
    """Embedding, all layers and what follows them, in one process."""

    def __init__(self, embedding: TextRows | PatchRows, stack: Stack, pooling: Pooling) -> None:
        self.spec = stack.spec
        self.stack = stack
        self.pooling = pooling
        self.embedding = embedding

    @classmethod
    def load(
        cls,
        model: Checkpoint | Path | str,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        loader: Loader | None = None,
    ) -> Encoder:
        """`model`: a local folder, or one opened already, of a model that writes too. `loader`: see `Stack.load`.
        Raises ModelError as Checkpoint does."""
        checkpoint = model if isinstance(model, Checkpoint) else Checkpoint.open(model, "bidirectional")
        spec = checkpoint.spec
        return cls(
            (TextRows if spec.patches is None else PatchRows).load(checkpoint, dtype, device),
            Stack.load(checkpoint, whole(spec), dtype, device, loader=loader),
            Pooling.load(checkpoint, dtype, device),
        )

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return self.embedding.loaded_bytes + self.stack.loaded_bytes + self.pooling.loaded_bytes

    def texts(self, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> Encoded:
        """Texts as token ids, and the types of the tokens where the model has any and they are not all 0.

        Raises ValueError for an empty text, one longer than the model reads, ids or types that it does not have, and
        where the model reads images.
        """
        if not isinstance(self.embedding, TextRows):
            raise ValueError(f"a {self.spec.model_type} model reads images, not texts")
        if types is not None and len(types) != len(texts):
            raise ValueError(f"{len(texts)} texts cannot have {len(types)} lists of token types")
        longest, limit = max(map(len, texts), default=0), self.spec.position_limit
        if limit is not None and longest > limit:
            raise ValueError(f"a text has {longest} tokens; this model reads {limit} at most")
        rows = self.embedding
        of_each: Sequence[Sequence[int] | None] = types if types is not None else [None] * len(texts)
        return self._encoded([rows.forward(text, kinds) for text, kinds in zip(texts, of_each, strict=True)])

    def images(self, images: Sequence[torch.Tensor]) -> Encoded:
        """Images as pixels, float [channels, height, width] each, as the checkpoint's image processor scales them.

        Raises ValueError for another size than the model's, and where the model reads texts.
        """
        if not isinstance(self.embedding, PatchRows):
            raise ValueError(f"a {self.spec.model_type} model reads texts, not images")
        return self._encoded([self.embedding.forward(image) for image in images])

    def _encoded(self, embedded: Sequence[torch.Tensor]) -> Encoded:
        if not embedded:
            raise ValueError("there is nothing to read")
        lengths = [len(each) for each in embedded]
        hidden = self.stack.run(torch.cat(list(embedded)), whole_texts(self.stack, lengths))
        rows = self.pooling.rows(hidden)
        pooled = self.pooling.pooled(rows, lengths)
        return Encoded(rows.split_with_sizes(lengths), pooled, self.pooling.logits(rows, pooled, lengths))


def whole_texts(stack: Stack, lengths: Sequence[int]) -> Batch:
    """A batch of whole texts, each from position 0 on, of which nothing is kept: rows see all of their text, or in a
    model that writes those before them. Raises ValueError for a text without rows."""
    if stack.spec.attention == "causal":
        if min(lengths, default=1) < 1:
            raise ValueError(f"texts have {list(lengths)} rows; each needs one at least")
        return CacheBatch([Span(stack.new_cache(rows), rows) for rows in lengths], stack.relative)
    return Sequences(lengths, stack.relative)
