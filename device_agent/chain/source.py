"""A text that is read for another to be written: what the decoder of a model with two halves attends to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Union

import torch

from device_agent.chain.local import LocalSubmodel
from device_agent.chain.reader import Reader
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.cross import ReadSource
from split_model.encoder_rows import TextRows
from split_model.errors import UnsupportedModel
from split_model.offload.loader import Loader
from split_model.pooling import Pooling
from split_model.slices import whole
from split_model.stack import Embedding, Stack
from split_model.submodel import AttendingSubmodel, ReadingSubmodel, SubmodelSession

Source = Union[ReadSource, torch.Tensor]
"""A text that was read: keys and values for the decoder's layers where these are here, else its rows
``[rows, hidden_size]``, of which whoever has those layers makes them."""


class BothHalves(ReadingSubmodel, AttendingSubmodel, Protocol):
    """All layers of a model that reads one text and writes another, on other devices."""


class Sources:
    """Reads texts for the layers of a decoder.

    Args:
        decoder: all of these where they are here.
        elsewhere: else who has them.

    Attributes:
        start: the token that every text that is written begins with; it is none of the answer.
    """

    def __init__(
        self, reader: Reader, start: int, decoder: Stack | None = None, elsewhere: AttendingSubmodel | None = None
    ) -> None:
        assert (decoder is None) is not (elsewhere is None)
        self.start = start
        self._reader = reader
        self._decoder, self._elsewhere = decoder, elsewhere

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        embedding: Embedding,
        decoder: Stack,
        compute: Compute,
        loader: Loader | None = None,
    ) -> tuple[Sources, int]:
        """The other half of a checkpoint, whose ``embedding`` both share; and the bytes that it takes.

        loader: as of ``decoder``.

        Raises:
            BadCheckpoint: the files are broken.
            UnsupportedModel: the config does not say with which token texts begin.
        """
        start, half, dtype, device = _start(checkpoint), checkpoint.reader(), decoder.dtype, decoder.device
        stack = Stack.load(half, whole(half.spec), dtype, device, loader=loader)
        pooling = Pooling.load(half, dtype, device)
        reader = Reader(TextRows(embedding, None), LocalSubmodel(stack, compute), pooling, compute)
        return cls(reader, start, decoder), stack.loaded_bytes + pooling.loaded_bytes

    @classmethod
    def over(
        cls, checkpoint: Checkpoint, embedding: Embedding, halves: BothHalves, dtype: torch.dtype, compute: Compute
    ) -> tuple[Sources, int]:
        """The same with all layers elsewhere: here is what is done before and behind the encoder's. Raises the same."""
        pooling = Pooling.load(checkpoint.reader(), dtype)
        reader = Reader(TextRows(embedding, None), halves, pooling, compute)
        return cls(reader, _start(checkpoint), elsewhere=halves), pooling.loaded_bytes

    async def read(self, ids: Sequence[int]) -> Source:
        """Read a text, of which many may then be written. Raises as ``Reader.read`` does."""
        decoder = self._decoder

        def made(rows: torch.Tensor, lengths: list[int]) -> Source:
            return rows if decoder is None else decoder.source(rows)

        return await self._reader.read([(ids, None)], made)

    def open(self, positions: int, read: torch.Tensor) -> SubmodelSession:
        """A session of the decoder's layers elsewhere, about a text. Raises as ``AttendingSubmodel.open_about``."""
        assert self._elsewhere is not None
        return self._elsewhere.open_about(positions, read)


def _start(checkpoint: Checkpoint) -> int:
    start = checkpoint.spec.bos_token_id
    if start is None:
        raise UnsupportedModel("decoder_start_token_id is missing: it says with which token its texts begin")
    return start
