"""A model that reads, with its layers anywhere: rows are made here, read where the layers are, and judged here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar, Union

import torch

from device_agent.sharing.compute import Compute
from split_model.device import put
from split_model.encoder_rows import PatchRows, TextRows
from split_model.pooling import Pooling
from split_model.spec import ModelSpec
from split_model.submodel import ReadingSubmodel

AT_ONCE_ROWS: Final = 512
"""Rows that are read in one go, but for an input that has more: others wait until they are through all layers."""

Value = TypeVar("Value")

Text = tuple[Sequence[int], Union[Sequence[int], None]]
"""Token ids, and the types of the tokens where they are not all 0."""


class AnyReader(Protocol):
    """What reads texts or images and says of them what ``judge`` makes of their rows.

    Attributes:
        compute: the thread on which that is done.
    """

    compute: Compute

    @property
    def spec(self) -> ModelSpec:
        """Of the model."""

    @property
    def pooling(self) -> Pooling | None:
        """What makes classes; None of a model that writes."""

    @property
    def connected(self) -> bool:
        """Whether anything can be read now."""

    @property
    def max_positions(self) -> int:
        """Most rows of one text or image, as it is now."""

    @property
    def at_once_rows(self) -> int:
        """Most rows to be read in one go, but for an input that has more."""

    async def read(
        self, inputs: Sequence[Text | torch.Tensor], judge: Callable[[torch.Tensor, list[int]], Value]
    ) -> Value:
        """Texts, or images as pixels [channels, height, width]: one, or several of ``at_once_rows`` rows together.

        Args:
            judge: is given the rows of all inputs as the model gives them, [rows, spec.final_size], and how many each
                has, on the compute thread; what it returns is returned. Of a text they may be the last ones alone,
                where no others are wanted.

        Raises:
            ValueError: an input is empty, has ids or pixels that the model has not, or they are too many.
            Exception: what ended it, where the layers are elsewhere.
        """


class Reader:
    """What is done before the layers of a model that writes nothing, the layers, and what is done behind them.

    Args:
        embedding: makes rows of texts or of images.
        submodel: all layers.
        pooling: the final norm, and what makes classes.
    """

    def __init__(
        self, embedding: TextRows | PatchRows, submodel: ReadingSubmodel, pooling: Pooling, compute: Compute
    ) -> None:
        self.embedding = embedding
        self.submodel = submodel
        self.pooling = pooling
        self.compute = compute

    @property
    def spec(self) -> ModelSpec:
        """See ``AnyReader``, for the others too."""
        return self.pooling.spec

    @property
    def connected(self) -> bool:
        return self.submodel.connected

    @property
    def max_positions(self) -> int:
        return self.submodel.max_rows

    @property
    def at_once_rows(self) -> int:
        return min(AT_ONCE_ROWS, self.submodel.max_rows)

    async def read(
        self, inputs: Sequence[Text | torch.Tensor], judge: Callable[[torch.Tensor, list[int]], Value]
    ) -> Value:
        """Inputs of at most ``submodel.max_rows`` rows together."""
        lane = self.compute.lane()
        hidden, lengths = await lane.submit(lambda: self._embedded(inputs))
        deep = await self.submodel.read(hidden, lengths)
        return await lane.submit(lambda: judge(self.pooling.rows(put(deep, hidden.device)), lengths))

    def _embedded(self, inputs: Sequence[Text | torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        rows = [self._rows(each) for each in inputs]
        return torch.cat(rows), [len(each) for each in rows]

    def _rows(self, given: Text | torch.Tensor) -> torch.Tensor:
        if isinstance(self.embedding, PatchRows):
            assert isinstance(given, torch.Tensor), "images are read as pixels"
            return self.embedding.forward(given)
        assert isinstance(given, tuple), "texts are read as token ids"
        return self.embedding.forward(*given)
