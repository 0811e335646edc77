"""Who of those who are there takes part in a group: as many as are wanted, and nobody who has just failed it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

FORGIVEN_S: Final = 600.0
"""A fault so long ago counts no more."""

FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 300.0
"""Who ends a life of the group may come back at once; who does it again waits, twice as long each time."""

MAX_KNOWN: Final = 256
"""Members that are remembered."""


@dataclass
class _Known:
    """What is known of a member."""

    faults: int = 0
    fault_at: float = 0.0
    may_at: float = 0.0
    slow: bool = False
    refused: bool = False
    why: str = ""


class Roll:
    """Times are seconds of any monotonic clock.

    Args:
        wanted: how many members, the portal among them where it computes; or exactly these names, in this order.
        portal: the portal's own name.
        computes: whether the portal computes a part, where ``wanted`` is a number.
    """

    def __init__(self, wanted: int | Sequence[str], portal: str, computes: bool) -> None:
        self._named = None if isinstance(wanted, int) else tuple(wanted)
        self.count = wanted if isinstance(wanted, int) else len(wanted)
        if self.count < 1 or (self._named is not None and len(set(self._named)) < len(self._named)):
            raise ValueError(f"a group needs members with names that differ, one or more, not {wanted!r}")
        self._portal = portal
        self.computes = portal in self._named if self._named is not None else computes
        self._known: dict[str, _Known] = {}

    def taking_part(self, here: Sequence[str], now: float, working: Sequence[str] = ()) -> tuple[str, ...]:
        """Who shall compute, in the order of their ring, the portal first: of those who are ``here``, in the order in
        which they came, those who may; where they are too many, those first who compute already (``working``)."""
        there = [name for name in here if name != self._portal and self._may(name, now)]
        if self.computes and self._may(self._portal, now):
            there.insert(0, self._portal)
        if self._named is not None:
            return tuple(name for name in self._named if name in there)
        chosen = sorted(there, key=lambda name: (name != self._portal, name not in working))[: self.count]
        return tuple(name for name in there if name in chosen)

    def came(self, name: str) -> None:
        """Somebody of this name has come: who was refused has been set right, as far as one knows."""
        self._of(name).refused = False

    def failed(self, name: str, why: str, now: float) -> None:
        """A life of the group has ended because of this member."""
        known = self._of(name)
        known.faults = known.faults + 1 if now - known.fault_at < FORGIVEN_S else 1
        known.fault_at, known.why = now, why
        if known.faults > 1:
            known.may_at = now + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(known.faults - 2, 16))

    def refuses(self, name: str, why: str) -> None:
        """This member cannot take part, or will not."""
        known = self._of(name)
        known.refused, known.why = True, why

    def has_refused(self, name: str) -> bool:
        """Whether it cannot take part, and has not come again since."""
        return name in self._known and self._known[name].refused

    def why(self, name: str) -> str:
        """What there is to say against it."""
        known = self._known.get(name)
        return known.why if known is not None and (known.slow or known.refused) else ""

    def was_slow(self, name: str) -> bool:
        """Whether it is planned without this member because that is slow."""
        return name in self._known and self._known[name].slow

    def is_slow(self, name: str, why: str) -> None:
        """It is planned without this member until it is fast again."""
        known = self._of(name)
        known.slow, known.why = True, why

    def is_fast(self, name: str) -> None:
        """It is planned with this member again."""
        known = self._of(name)
        known.slow, known.why = False, ""

    def state(self, name: str, here: bool, now: float) -> tuple[Literal["joining", "slow", "lost", "excluded"], str]:
        """Of a member that does not take part now, and why."""
        known = self._of(name)
        if known.refused:
            return "excluded", known.why
        if not here:
            return "lost", known.why
        if known.slow:
            return "slow", known.why
        if known.may_at > now:
            return "excluded", f"{known.why}; it may come back in {known.may_at - now:.0f} s"
        if self._named is not None and name not in self._named:
            return "excluded", "it is not one of those who are wanted"
        return "joining", ""

    @property
    def names(self) -> list[str]:
        """Everybody that is remembered, the portal first where it computes."""
        first = [self._portal] if self.computes else []
        wanted = self._named or ()
        return list(dict.fromkeys([*first, *wanted, *self._known]))

    def next_change(self, now: float) -> float | None:
        """When somebody who has to wait may come back; None: nobody waits."""
        return min((known.may_at for known in self._known.values() if known.may_at > now), default=None)

    def _may(self, name: str, now: float) -> bool:
        known = self._known.get(name)
        return known is None or not (known.slow or known.refused or known.may_at > now)

    def _of(self, name: str) -> _Known:
        if name not in self._known and len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return self._known.setdefault(name, _Known())
