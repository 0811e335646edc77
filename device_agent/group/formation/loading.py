"""How members say that they still load, and how the portal tells one that reads slowly from one whose disk hangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final

from device_agent.group.formation.joining import LOADED
from device_agent.group.formation.posted import NotFormed, posted
from peers.board import Board
from peers.group import Group

LOADING: Final = "loading/"
"""What a member posts, with a count and its rank, while it loads: it is about to read another layer, or a piece of what
it repacks."""

TOLD_EVERY_S: Final = 20.0
"""It posts no more often: a board has so many places."""

STALLED_S: Final = 120.0
"""A member that has said that it loads, and nothing more for so long, hangs: 28 MB/s would have read a layer of 70B in
float32."""


class Loading:
    """What a member calls before each layer, see ``KeptLayers.load``. Raises ``PeerLost`` where the group has ended."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        self._told, self._told_at = 0, -TOLD_EVERY_S

    def __call__(self) -> None:
        self._board.has(())
        if monotonic() - self._told_at >= TOLD_EVERY_S:
            self._told_at = monotonic()
            self._board.post(said(self._rank, self._told), b"")
            self._told += 1


def said(rank: int, count: int) -> str:
    """The key of what a member posts, from 0 on."""
    return f"{LOADING}{count}/{rank}"


async def all_loaded(group: Group, seats: Mapping[int, str]) -> None:
    """Wait until the members of all ``seats``, names by rank, have their layers.

    Raises ``NotFormed`` where one reads nothing more, or has not read all in time, ``PeerLost`` where one is gone, or
    has refused.
    """
    board, heard = group.board, {rank: (0, monotonic()) for rank in seats}

    def look(missing: Sequence[int]) -> None:
        for rank in missing:
            count, at = heard[rank]
            if board.has([said(rank, count)]):
                heard[rank] = count + 1, monotonic()
            elif count and monotonic() - at > STALLED_S:
                why = f"{seats[rank]} has read no further layer for {STALLED_S:g} s: look whether its disk hangs"
                raise NotFormed(why, (rank,))

    await posted(group, seats, LOADED, look=look)
