"""How fast a member computes: what its own part of the steps took, and a trial where it has none."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import torch

from device_agent.group.messages.heads import BatchHead, GroupHead, ReadHead, RowsHead
from device_agent.group.steps.worker import Worker
from peers.exchange import waited_s
from split_model.offload.load_counts import LoadCounts

TRIAL_S: Final = 0.25
"""A trial takes so long: some turns of a scheduler that gives a machine's cores to several processes."""

_SIZE: Final = 256


class Pace:
    """What was computed, and read from the disk for it, since it was made; read on any thread.

    Attributes:
        done: steps, and the seconds of this member's own that they took.
        loads: what was read meanwhile.
        relief: how many steps of relief the member has taken now, see ``Relieving``.
    """

    def __init__(self) -> None:
        self.done: tuple[int, float] = (0, 0.0)
        self.loads = LoadCounts()
        self.relief = 0

    def add(self, seconds: float, loads: LoadCounts) -> None:
        """One more step; ``loads``: of all of them."""
        steps, before = self.done
        self.done, self.loads = (steps + 1, before + seconds), loads


class PacedWorker(Worker):
    """Keeps a pace: of each step the time in which it waited neither for others nor for its disk."""

    pace: Pace
    _before = LoadCounts()

    def begin(self, pace: Pace) -> None:
        """Keep this one from now on."""
        self.pace, self._before = pace, self._loads

    @property
    def _loads(self) -> LoadCounts:
        return LoadCounts() if self.loader is None else self.loader.counts

    def do(self, head: GroupHead, given: torch.Tensor | None = None) -> torch.Tensor | None:
        """See ``Worker.do``."""
        if not isinstance(head, (RowsHead, BatchHead, ReadHead)):
            return super().do(head, given)
        began, waited, before = perf_counter(), waited_s(), self._loads
        outputs = super().do(head, given)
        loads, self.pace.relief = self._loads, self.relief
        own_s = perf_counter() - began - (waited_s() - waited) - (loads - before).waited_s
        self.pace.add(own_s, loads - self._before)
        return outputs


@torch.inference_mode()
def speed() -> float:
    """Products a second of two small matrices, tried for ``TRIAL_S`` on this thread."""
    one = torch.ones((_SIZE, _SIZE))
    made, began = 0, perf_counter()
    while (took := perf_counter() - began) < TRIAL_S:
        torch.mm(one, one)
        made += 1
    return made / took
