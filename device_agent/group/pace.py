"""How fast a member computes: what its own part of the steps took, and a trial where it has none."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import torch

from device_agent.group.heads import BatchHead, GroupHead, ReadHead, RowsHead
from device_agent.group.worker import Worker
from peers.exchange import waited_s

TRIAL_S: Final = 0.25
"""A trial takes so long: some turns of a scheduler that gives a machine's cores to several processes."""

_SIZE: Final = 256


class Pace:
    """What was computed since it was made; read on any thread.

    Attributes:
        done: steps, and the seconds of this member's own that they took.
    """

    def __init__(self) -> None:
        self.done: tuple[int, float] = (0, 0.0)

    def add(self, seconds: float) -> None:
        """One more step."""
        steps, before = self.done
        self.done = steps + 1, before + seconds


class PacedWorker(Worker):
    """Keeps a pace: of each step the time in which it did not wait for others."""

    pace: Pace

    def do(self, head: GroupHead, given: torch.Tensor | None = None) -> torch.Tensor | None:
        """See ``Worker.do``."""
        if not isinstance(head, (RowsHead, BatchHead, ReadHead)):
            return super().do(head, given)
        began, waited = perf_counter(), waited_s()
        outputs = super().do(head, given)
        self.pace.add(perf_counter() - began - (waited_s() - waited))
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
