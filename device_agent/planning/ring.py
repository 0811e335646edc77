"""What a member reads into its ring of buffers in one step, and when there is room for it. Pure.

A ring is used first in, first out: units are read in the order of use and released in it, and behind the last unit of a
step comes the first of the next. A unit takes its bytes from the begin of its read until its last use is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from device_agent.planning.plan import GroupPlan
from device_agent.planning.shape import ModelShape
from device_agent.planning.stages import Stage
from split_model.offload.units import Unit


def streamed_in(plan: GroupPlan, stage: Stage) -> tuple[Unit, ...]:
    """Units of a stage that its member reads at each use, in the order of use."""
    units = plan.streamed[stage.member] if plan.streams else ()
    return tuple(unit for unit in units if unit.layer in stage.layers)


def turns_of(shape: ModelShape, plan: GroupPlan, stage: Stage) -> list[tuple[Unit, ...]]:
    """The units of a stage in runs of which each finds room in the ring as a whole.

    Several micro-batches take turns: all of them pass the stage up to the end of the first run, then of the second; so
    nothing is read twice in a step. Most often there is one run: a micro-batch goes on as soon as it is through.
    """
    member = stage.member
    units = streamed_in(plan, stage)
    ring_bytes = plan.ring_bytes[member] if units else 0
    return held_together(units, lambda unit: plan.matrices(shape, member, unit), ring_bytes)


def held_together(
    units: Sequence[Unit], rooms: Callable[[Unit], Sequence[int]], ring_bytes: int
) -> list[tuple[Unit, ...]]:
    """Units in the order of use, in runs of which each finds room in a ring as a whole, wherever the ring's end is: so
    beside several there is room for their largest matrix once more. One alone always does. One empty run for none.

    rooms: bytes of a unit's matrices.
    """
    runs: list[list[Unit]] = [[]]
    used = largest = 0
    for unit in units:
        sizes = rooms(unit)
        used, largest = used + sum(sizes), max(largest, *sizes)
        if runs[-1] and used + largest > ring_bytes:
            runs.append([])
            used, largest = sum(sizes), max(sizes)
        runs[-1].append(unit)
    return [tuple(run) for run in runs]


class Ring:
    """Seconds at which the reads of one member begin and end, found in the order of the reads."""

    def __init__(self, room: int, bytes_s: float, prefetch: bool, full: Iterable[int] = ()) -> None:
        """An empty ring, or one that was filled.

        Args:
            room: bytes of units that find room together; one alone always does.
            bytes_s: of the disk.
            prefetch: whether reads begin as soon as there is room, else when they are waited for.
            full: bytes of the first reads; as many as fit are there from the beginning.
        """
        self._room = room
        self._bytes_s = bytes_s
        self._prefetch = prefetch
        self._held: deque[int] = deque()
        self._released: deque[float] = deque()
        self._used = 0
        self._free_at = 0.0
        self._read_at = 0.0
        self._ready = 0
        left = room
        for size in full if prefetch else ():
            left -= size
            if left < 0:
                break
            self._ready += 1

    def read(self, size: int, wanted: float) -> tuple[float, float]:
        """The next read: when it begins and ends. wanted: when computing needs it.

        All reads before must be released in time: who reads more than the ring holds without releasing waits for ever,
        which is an error of the caller.
        """
        while self._held and self._used + size > self._room:
            self._free_at = max(self._free_at, self._released.popleft())
            self._used -= self._held.popleft()
        self._held.append(size)
        self._used += size
        if self._ready:
            self._ready -= 1
            return 0.0, 0.0
        begin = max(self._read_at, self._free_at, 0.0 if self._prefetch else wanted)
        self._read_at = begin + size / self._bytes_s
        return begin, self._read_at

    def release(self, at: float) -> None:
        """The oldest read that is not released is no longer used from then on."""
        self._released.append(at)
