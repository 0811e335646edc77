"""Which units are in the ring, which is read next, and when a buffer is free. Pure: whoever calls has the lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from split_model.offload.ring import Ring
from split_model.offload.units import Unit


@dataclass(eq=False)
class Slot:
    """A unit in the ring.

    Attributes:
        starts: of its matrices, in bytes from the ring's beginning.
        state: "read" also where it failed, see `error`.
        users: how many use it now.
        taken: whether it has been used.
        dropped: whether nobody will use it.
        behind, ready: marks of the device that it is for: when its buffers are free, and when what was read is in them.
    """

    unit: Unit
    starts: list[int]
    state: Literal["reading", "read"] = "reading"
    error: Exception | None = None
    users: int = 0
    taken: bool = False
    dropped: bool = False
    behind: Any = None
    ready: Any = None


class Slots:
    """The ring's, in the order in which they were read.

    Attributes:
        order: of the units' uses, again and again.
        held: units that stay once they were used.
    """

    def __init__(self, ring: Ring, order: Sequence[Unit], ahead: bool = True, again: int = 0) -> None:
        """ahead: whether units are read before they are asked for. again: from which one on they are used again and
        again; those before it are used first, and whenever one of them is asked for."""
        self.ring = ring
        self.held: set[Unit] = set()
        self._reads_ahead = ahead
        self._asked: Unit | None = None
        self._live: deque[Slot] = deque()
        self._set_order(order, again)

    def _set_order(self, order: Sequence[Unit], again: int) -> None:
        self.order, self._again = tuple(order), again
        self._places = {unit: place for place, unit in enumerate(order)}
        self._next_read = 0

    # ---- reading ----

    def begin(self, rooms: Callable[[Unit], Sequence[int]]) -> Slot | None:
        """The next unit's, where there is something to read and room for it. rooms: of a unit's matrices, in bytes.

        Behind one that failed nothing is read until it was asked for: then it is tried again.
        """
        ahead = self._ahead()
        if not self.order or any(slot.error is not None for slot in ahead):
            return None
        unit = self.order[self._next_read]
        if any(slot.unit == unit for slot in ahead):
            return None
        if not self._reads_ahead and unit != self._asked:
            return None
        starts = self.ring.take(rooms(unit))
        if starts is None:
            return None
        self._next_read += 1
        if self._next_read == len(self.order):
            self._next_read = self._again
        slot = Slot(unit, starts)
        self._live.append(slot)
        return slot

    def filled(self, slot: Slot, error: Exception | None) -> None:
        """It is in memory, or failed."""
        slot.state, slot.error = "read", error
        self._free()

    # ---- using ----

    def next_of(self, unit: Unit) -> Slot | None:
        """The slot of the unit that is wanted now, as far as there is one; else it is read next.

        Raises ValueError for a unit that is none of the order's.
        """
        for slot in self._live:
            if slot.unit == unit and slot.taken and not slot.dropped:
                return slot
        if unit not in self._places:
            raise ValueError(f"{unit} is none of the units that are read from the disk")
        for slot in self._ahead():
            if slot.unit == unit:
                return slot
            slot.dropped = True
        if self.order[self._next_read] != unit:
            self._next_read = self._places[unit]
        self._asked = unit
        self._free()
        return None

    def take(self, slot: Slot) -> bool:
        """It is used; whether for the first time since it was read."""
        first, self._asked = not slot.taken, None
        slot.taken = True
        slot.users += 1
        return first

    def give_back(self, slot: Slot) -> bool:
        """A use has ended; whether its buffers are free now."""
        slot.users -= 1
        if slot.users or slot.unit in self.held:
            return False
        slot.dropped = True
        self._free()
        return True

    def let_go(self, units: Iterable[Unit]) -> list[Slot]:
        """They are held no more. Returns those that are free now."""
        self.held -= set(units)
        freed = [slot for slot in self._live if slot.taken and not slot.users and slot.unit not in self.held]
        freed = [slot for slot in freed if not slot.dropped]
        for slot in freed:
            slot.dropped = True
        self._free()
        return freed

    def drop_ahead(self) -> None:
        """What was read and not used is read again when it is wanted."""
        for slot in self._ahead():
            slot.dropped = True
        self._free()

    def follow(self, order: Sequence[Unit], again: int = 0) -> None:
        """Another order."""
        self.drop_ahead()
        self._set_order(order, again)

    def _ahead(self) -> list[Slot]:
        return [slot for slot in self._live if not slot.taken and not slot.dropped]

    def _free(self) -> None:
        while self._live and self._live[0].dropped and self._live[0].state == "read" and not self._live[0].users:
            self._live.popleft()
            self.ring.free()
