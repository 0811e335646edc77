"""How members say that they still load, and how the portal tells one that reads slowly from one whose disk hangs; and
the same before that, while they find out whether their parts fit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Final

from device_agent.group.formation.joining import FITS, LOADED
from device_agent.group.formation.posted import NotFormed, posted
from peers.board import Board, PeerLost
from peers.group import Group

FITTING: Final = "fitting/"
"""What a member posts, with a count and its rank, until it has found out whether it fits: the model may have to come
first."""

LOADING: Final = "loading/"
"""The same while it loads: it is about to read another layer, or a piece of what it repacks."""

TOLD_EVERY_S: Final = 20.0
"""It posts no more often: a board has so many places."""

STALLED_S: Final = 120.0
"""A member that says nothing more for so long hangs: 28 MB/s would have read a layer of 70B in float32."""


class Loading:
    """What a member calls before each layer, see ``KeptLayers.load``. Raises ``PeerLost`` where the group has ended."""

    def __init__(self, board: Board, rank: int, what: str = LOADING) -> None:
        self._board, self._rank, self._what = board, rank, what
        self._told, self._told_at = 0, -TOLD_EVERY_S

    def __call__(self) -> None:
        self._board.has(())
        if monotonic() - self._told_at >= TOLD_EVERY_S:
            self._told_at = monotonic()
            self._board.post(said(self._what, self._rank, self._told), b"")
            self._told += 1

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """While inside, a thread of its own says it, for what is called here asks nobody now and then."""
        over = threading.Event()

        def say() -> None:
            with suppress(PeerLost):  # Who is busy here notices it too, in the end.
                self()
                while not over.wait(TOLD_EVERY_S):
                    self()

        thread = threading.Thread(target=say, name="fitting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def said(what: str, rank: int, count: int) -> str:
    """The key of what a member posts, from 0 on."""
    return f"{what}{count}/{rank}"


async def all_fit(group: Group, seats: Mapping[int, str]) -> None:
    """Wait until the members of all ``seats``, names by rank, have found that their parts fit.

    Raises ``NotFormed`` where one says nothing, or has not found out in time, ``PeerLost`` where one is gone, or has
    refused.
    """
    how = "has not even said for {:g} s that it finds out whether its part fits: look whether it hangs"
    await posted(group, seats, FITS, look=_look(group, seats, FITTING, how, lambda count: True))


async def all_loaded(group: Group, seats: Mapping[int, str]) -> None:
    """Wait until the members of all ``seats`` have their layers. Raises as ``all_fit``, of what they read."""
    # Before the first layer it says nothing: it may have to let go of others.
    how = "has read no further layer for {:g} s: look whether its disk hangs"
    await posted(group, seats, LOADED, look=_look(group, seats, LOADING, how, lambda count: count > 0))


def _look(
    group: Group, seats: Mapping[int, str], what: str, how: str, may_stall: Callable[[int], bool]
) -> Callable[[Sequence[int]], None]:
    """What raises ``NotFormed`` where a member says nothing more that has said it ``may_stall`` times; ``how``: of the
    seconds since."""
    heard = {rank: (0, monotonic()) for rank in seats}

    def look(missing: Sequence[int]) -> None:
        for rank in missing:
            count, at = heard[rank]
            if group.board.has([said(what, rank, count)]):
                heard[rank] = count + 1, monotonic()
            elif may_stall(count) and monotonic() - at > STALLED_S:
                raise NotFormed(f"{seats[rank]} {how.format(STALLED_S)}", (rank,))

    return look
