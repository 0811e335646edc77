"""A text that is read for another to be written: what the decoder of a model with two halves attends to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from device_agent.chain.reader import Reader
from device_agent.chain.reading import LocalReadingSubmodel
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.cross import ReadSource
from split_model.encoder_rows import TextRows
from split_model.errors import UnsupportedModel
from split_model.pooling import Pooling
from split_model.slices import whole
from split_model.stack import Embedding, Stack


class Sources:
    """Reads texts for the layers of a decoder that are all here.

    Attributes:
        start: the token that every text that is written begins with; it is none of the answer.
    """

    def __init__(self, reader: Reader, decoder: Stack, start: int) -> None:
        self.start = start
        self._reader = reader
        self._decoder = decoder

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, embedding: Embedding, decoder: Stack, compute: Compute
    ) -> tuple[Sources, int]:
        """The other half of a checkpoint, whose ``embedding`` both share; and the bytes that it takes.

        Raises:
            BadCheckpoint: the files are broken.
            UnsupportedModel: the config does not say with which token texts begin.
        """
        start = checkpoint.spec.bos_token_id
        if start is None:
            raise UnsupportedModel("decoder_start_token_id is missing: it says with which token its texts begin")
        half, dtype, device = checkpoint.reader(), decoder.dtype, decoder.device
        stack = Stack.load(half, whole(half.spec), dtype, device)
        pooling = Pooling.load(half, dtype, device)
        reader = Reader(TextRows(embedding, None), LocalReadingSubmodel(stack, compute), pooling, compute)
        return cls(reader, decoder, start), stack.loaded_bytes + pooling.loaded_bytes

    async def read(self, ids: Sequence[int]) -> ReadSource:
        """Read a text, of which many may then be written. Raises as ``Reader.read`` does."""

        def keys_and_values(rows: torch.Tensor, lengths: list[int]) -> ReadSource:
            return self._decoder.source(rows)

        return await self._reader.read([(ids, None)], keys_and_values)
