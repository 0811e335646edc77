"""Texts read by a model that writes, its layers anywhere. Nothing of them is kept, and nothing is said behind them.

Short texts go through the layers together where these offer that. Elsewhere, and where a text is long, each has a
session of its own for as long as it takes, and what runs several sessions in one step does so with these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import torch

from device_agent.chain.chain import Chain
from device_agent.chain.local import MAX_ROWS
from device_agent.chain.prefill import prefill
from device_agent.chain.reader import AT_ONCE_ROWS, Text
from split_model.device import put
from split_model.spec import ModelSpec
from split_model.submodel import ReadingSubmodel

SESSIONS_AT_ONCE: Final = 4
"""Texts of a request that have sessions side by side: one is computed, others travel."""

Value = TypeVar("Value")


class ChainReader:
    """See ``AnyReader``.

    Args:
        last_alone: of each text its last row is wanted and no other, so none else comes back.
    """

    pooling = None

    def __init__(self, chain: Chain, *, last_alone: bool) -> None:
        self.compute = chain.compute
        self._chain = chain
        self._last_alone = last_alone
        self._together = _reading(chain)

    @property
    def spec(self) -> ModelSpec:
        """See ``AnyReader``, for the others too."""
        return self._chain.parts.spec

    @property
    def connected(self) -> bool:
        return self._chain.connected

    @property
    def max_positions(self) -> int:
        most = self._chain.max_positions
        return most if self._last_alone else min(most, MAX_ROWS)  # All that are wanted are here at once.

    @property
    def at_once_rows(self) -> int:
        return MAX_ROWS if self._together is None else min(AT_ONCE_ROWS, self._chain.chunk or AT_ONCE_ROWS)

    async def read(
        self, inputs: Sequence[Text | torch.Tensor], judge: Callable[[torch.Tensor, list[int]], Value]
    ) -> Value:
        """Raises ``SessionFailed`` where the layers are elsewhere and refuse, fail or are gone."""
        texts = [_ids(each) for each in inputs]
        lengths, head = [len(each) for each in texts], self._chain.parts.head
        if self._together is not None and sum(lengths) <= self.at_once_rows:
            deep = await self._read_together(self._together, texts, lengths)
        else:
            each = await self._read_apart(texts)
            deep, lengths = torch.cat(each), [len(rows) for rows in each]
        return await self.compute.lane().submit(lambda: judge(head.rows(put(deep, head.device)), lengths))

    async def _read_together(
        self, layers: Sequence[ReadingSubmodel], texts: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> torch.Tensor:
        """All rows of all texts behind the last layer."""
        embedding, ids = self._chain.parts.embedding, [each for text in texts for each in text]
        hidden = await self.compute.lane().submit(lambda: embedding.forward(ids))
        for some in layers:
            hidden = await some.read(hidden, lengths)
        return hidden

    async def _read_apart(self, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The rows that are wanted of each text. When one fails all end, and none goes on behind this."""
        room = asyncio.Semaphore(SESSIONS_AT_ONCE)

        async def one(ids: Sequence[int]) -> torch.Tensor:
            async with room:
                return await self._read_alone(ids)

        reading = [asyncio.create_task(one(ids)) for ids in texts]
        try:
            return await asyncio.gather(*reading)
        finally:
            for each in reading:
                each.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    async def _read_alone(self, ids: Sequence[int]) -> torch.Tensor:
        session = self._chain.open(len(ids), len(ids), len(ids))
        try:
            return await prefill(session, ids, 1 if self._last_alone else len(ids))
        finally:
            session.close()


def _ids(given: Text | torch.Tensor) -> Sequence[int]:
    assert isinstance(given, tuple), "what writes reads texts"
    return given[0]


def _reading(chain: Chain) -> list[ReadingSubmodel] | None:
    """All layers, one behind the other, as they read several texts together; None where some do not."""
    found: list[ReadingSubmodel] = [chain.front]
    if chain.middle is not None:
        if chain.middle.reading is None:
            return None
        found.append(chain.middle.reading)
    return found if chain.back is None else [*found, chain.back]
