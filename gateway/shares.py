"""How tenants share what there is too little of: answers of agents, places to wait, bytes being read. Pure.

Two rules, both known from switches that share one buffer among many ports:

- the *dynamic threshold*: who takes more may hold at most ``ALPHA`` times what is then still free. One greedy tenant
  gets three quarters, two get three sevenths each, and whoever comes new finds something;
- the *longest queue gives way*: what need not be left free is used to the last, and a newcomer pushes out the youngest
  of whoever has most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

ALPHA: Final = 3
"""How many times what it leaves free a tenant may hold: more gives a greedy one more and newcomers less."""


def within_share(held: int, free: int) -> bool:
    """Whether a tenant may hold ``held`` where that leaves ``free`` for all others."""
    return held <= ALPHA * free


def granted(wanted: int, held: int, free: int, *, alone: bool) -> int:
    """Return how many of ``wanted`` answers an agent may generate at once; 0: none now.

    Args:
        held: answers the same tenant has there already.
        free: what is left of the agent's capacity.
        alone: there is no other tenant to leave something for.
    """
    if alone or free <= 0:
        return max(0, min(wanted, free))
    most = (ALPHA * free - held) // (1 + ALPHA)  # The largest count with held + count <= ALPHA * (free - count).
    return min(wanted, max(most, 0 if held else 1))


def next_in_turn(waiting: Iterable[str], held: Mapping[str, int]) -> str | None:
    """Return the tenant that holds least of those that wait, which are in the order of their turns; None where none
    waits."""
    return min(waiting, key=lambda tenant: held.get(tenant, 0), default=None)


def gives_way(places: Mapping[str, int], newcomer: str) -> str | None:
    """Return the tenant that loses one of its places in a full room to ``newcomer``; None where none has so many more
    that it should."""
    most = max(places, key=lambda tenant: places[tenant], default=None)
    return most if most is not None and places[most] > places.get(newcomer, 0) + 1 else None
