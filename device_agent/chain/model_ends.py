"""What a device holds of a model: embedding and first layers, last layers and head."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from split_model.checkpoint import Checkpoint
from split_model.offload.loader import Loader
from split_model.slices import input_slice, output_slice
from split_model.spec import ModelSpec
from split_model.stack import Embedding, Head, Stack


@dataclass(frozen=True)
class DeviceParts:
    """The input submodel (embedding, ``front``) and the output submodel (``back``, head) of one model.

    ``front`` or ``back`` may have no layers; a tied head shares the embedding's memory.
    """

    spec: ModelSpec
    embedding: Embedding
    front: Stack
    back: Stack
    head: Head

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        split: int,
        tail: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        loader: Loader | None = None,
    ) -> DeviceParts:
        """Read ``split`` layers at the front, ``tail`` at the end and both ends' matrices, nothing else.

        loader: see ``Stack.load``.

        Raises:
            ValueError: the model has fewer layers.
            BadCheckpoint: the files are broken.
        """
        spec = checkpoint.spec
        embedding = Embedding.load(checkpoint, dtype, device)
        return cls(
            spec=spec,
            embedding=embedding,
            front=Stack.load(checkpoint, input_slice(spec, split), dtype, device, loader=loader),
            back=Stack.load(checkpoint, output_slice(spec, tail), dtype, device),
            head=Head.load(checkpoint, spec, dtype, embedding, device),
        )

    @property
    def loaded_bytes(self) -> int:
        """Bytes of weights in memory."""
        return sum(part.loaded_bytes for part in (self.embedding, self.front, self.back, self.head))
