"""How the portal waits for what all members of a group have to post before the first step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final

from device_agent.group.formation.joining import LOADED_WITHIN_S
from peers.group import Group

_LOOK_EVERY_S: Final = 0.02


class NotFormed(Exception):
    """A life has not begun because of ``ranks``; ``refused``: they cannot do their parts."""

    def __init__(self, why: str, ranks: tuple[int, ...], refused: bool = False) -> None:
        super().__init__(why)
        self.ranks, self.refused = ranks, refused


async def posted(
    group: Group,
    seats: Mapping[int, str],
    what: str,
    within_s: float = LOADED_WITHIN_S,
    look: Callable[[Sequence[int]], object] = lambda _: None,
) -> None:
    """Wait until the members of all ``seats``, names by rank, have posted it.

    look: is called now and then with who has not yet; it may raise what ends the wait.

    Raises ``NotFormed`` where some have not in time, ``PeerLost`` where one is gone, or has refused.
    """
    deadline = monotonic() + within_s
    while late := tuple(rank for rank in seats if not group.board.has([f"{what}{rank}"])):
        if monotonic() > deadline:
            names = ", ".join(seats[rank] for rank in late)
            raise NotFormed(f"{names} did not come within {within_s:g} s ({what.rstrip('/')})", late)
        look(late)
        await asyncio.sleep(_LOOK_EVERY_S)
