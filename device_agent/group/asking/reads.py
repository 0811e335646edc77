"""Whole texts that a group has been asked to read and has not answered yet: the next life is asked for them again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from device_agent.group.asking.asks import GroupAsk
from device_agent.group.asking.record import MAX_LOSSES
from device_agent.group.messages.heads import MAX_TEXTS, ReadHead
from device_agent.sharing.compute import quiet, tell
from wire.errors import Code, SessionFailed

PART_ROWS: Final = 1024
"""Of several texts in one step; between steps others decode."""


@dataclass(eq=False)
class _Read:
    """Rows ``[rows, hidden]`` of some texts, of which the group takes so many at once.

    Attributes:
        left: parts that are not answered.
        losses: lives that have ended meanwhile.
    """

    hidden: torch.Tensor
    lengths: tuple[int, ...]
    outputs: torch.Tensor
    answer: asyncio.Future[torch.Tensor]
    left: set[int]
    losses: int = 0

    def parts(self) -> Iterator[tuple[range, tuple[int, ...]]]:
        """Rows and lengths of each."""
        begin, first = 0, 0
        while first < len(self.lengths):
            last = first + 1
            while last < min(len(self.lengths), first + MAX_TEXTS) and sum(self.lengths[first : last + 1]) <= PART_ROWS:
                last += 1
            lengths = self.lengths[first:last]
            yield range(begin, begin + sum(lengths)), lengths
            begin, first = begin + sum(lengths), last


class Reads:
    """All that is to be read. Everything belongs on one event loop.

    Args:
        ask: asks the life that there is, if there is one.
    """

    def __init__(self, ask: Callable[[GroupAsk], None]) -> None:
        self._ask = ask
        self._reads: dict[_Read, None] = {}

    def ask(self, hidden: torch.Tensor, lengths: Sequence[int]) -> asyncio.Future[torch.Tensor]:
        """Texts of so many rows each, hidden ``[sum(lengths), hidden]`` as the first layer takes them, to the outputs.

        Nobody may write to ``hidden`` before they are there. Their future fails with ``SessionFailed``.
        """
        answer: asyncio.Future[torch.Tensor] = quiet(asyncio.get_running_loop().create_future())
        read = _Read(hidden, tuple(lengths), torch.empty_like(hidden), answer, set())
        read.left.update(range(len(list(read.parts()))))
        self._reads[read] = None
        self._send(read)
        return answer

    @property
    def waiting(self) -> bool:
        """Whether anything is not answered."""
        return bool(self._reads)

    def again(self) -> None:
        """A life has begun that knows of nothing."""
        for read in list(self._reads):
            if read.answer.done():  # Whoever asked has gone.
                del self._reads[read]
            else:
                self._send(read)

    def lost(self, why: str) -> None:
        """A life has ended: what waits is asked again in the next, unless it may be the reason."""
        for read in list(self._reads):
            read.losses += 1
            if read.losses >= MAX_LOSSES:
                self._fail(read, why)

    def end(self, why: str) -> None:
        """No life will follow."""
        for read in list(self._reads):
            self._fail(read, why)

    def _send(self, read: _Read) -> None:
        for number, (rows, lengths) in enumerate(read.parts()):
            if number in read.left:
                deliver = self._taker(read, number, rows)
                self._ask(GroupAsk(ReadHead(lengths), read.hidden[rows.start : rows.stop], deliver))

    def _taker(self, read: _Read, number: int, rows: range) -> Callable[[torch.Tensor], object]:
        """Takes the outputs of one part, on any thread."""
        loop = asyncio.get_running_loop()
        return lambda outputs: tell(loop, self._answered, read, number, rows, outputs)

    def _answered(self, read: _Read, number: int, rows: range, outputs: torch.Tensor) -> None:
        if read not in self._reads or number not in read.left:
            return  # It has failed, or was answered in the life before.
        read.outputs[rows.start : rows.stop] = outputs
        read.left.discard(number)
        if not read.left:
            del self._reads[read]
            if not read.answer.done():
                read.answer.set_result(read.outputs)

    def _fail(self, read: _Read, why: str) -> None:
        del self._reads[read]
        if not read.answer.done():
            read.answer.set_exception(SessionFailed(Code.STAGE_LOST, why))
