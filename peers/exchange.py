"""What is under way between members, as its caller has it: which tiles are there, and when all is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import monotonic
from typing import Final

from peers.board import PeerLost
from peers.tiles import Tile, joined

DONE_WITHIN_S: Final = 120.0
"""A member that lives and does not send its part for so long is lost; it is more than one computes at once."""

LOOK_AGAIN_S: Final = 0.005
"""While another thread reads what is waited for: it may stop, where that is all it wanted."""


class _Waited(threading.local):
    """Of each thread."""

    seconds = 0.0


_waited = _Waited()


def waited_s() -> float:
    """Seconds that this thread has waited for other members so far."""
    return _waited.seconds


class Exchange:
    """A collective, or one tensor on its way; made by ``Collectives``. It goes on by itself, whoever waits.

    for tile in exchange:      # as they come; each may be used at once
        ...
    for rows in exchange.runs():        # or so many at once as have come
        ...
    exchange.wait()            # all is there, and what was sent may be changed

    Every wait raises ``PeerLost`` where a member is gone or takes longer than ``within_s``, and ``EpochOver`` where the
    group has begun another epoch.

    Args:
        read: asked to read what a member sends, on the thread that waits, until that is enough; False where it cannot.
        lost: called where a member takes too long, with the reason and its rank.

    Attributes:
        epoch: of the group.
        numbers: of the collective, on the link to each other member.
        done: whether all is there.
    """

    def __init__(
        self,
        epoch: int,
        numbers: Mapping[int, int],
        read: Callable[[int, Callable[[], bool]], bool],
        lost: Callable[[str, int | None], None],
    ) -> None:
        self.epoch, self.numbers = epoch, numbers
        self.done = False
        self._read, self._lost = read, lost
        self._lock = threading.Lock()
        """Guards the counts."""
        self._left = 1
        """What has to happen yet; one of it is that all of it has begun."""
        self._owed: dict[int, int] = {}
        self._tiles: list[Tile] = []
        self._failure: Exception | None = None
        self._woken: threading.Event | None = None
        self._finish: Callable[[], None] | None = None
        self._landed: Callable[[Tile | None], None] | None = None
        self._over: Callable[[Exchange], None] | None = None

    def wait(self, within_s: float = DONE_WITHIN_S) -> None:
        """Until all is done."""
        self._until(lambda: self.done, within_s)
        landed, self._landed = self._landed, None
        if landed is not None:
            landed(None)

    def __iter__(self) -> Iterator[Tile]:
        """Tiles in the order in which they come, this member's own first; then it is done."""
        for tiles in self._coming():
            yield from tiles

    def runs(self) -> Iterator[range]:
        """Rows as they come, each once, in as few ranges as the tiles make that are there when it is asked: who is
        late with his products makes them of more rows at once, and reads his weights less often."""
        for tiles in self._coming():
            yield from joined(tiles)

    def _coming(self) -> Iterator[list[Tile]]:
        """Whatever has come since it was asked last."""
        seen = 0
        while True:
            self._until(lambda seen=seen: self.done or len(self._tiles) > seen, DONE_WITHIN_S)  # type: ignore[misc]
            tiles = self._tiles[seen:]
            if not tiles:
                return
            seen += len(tiles)
            if self._landed is not None:
                for tile in tiles:
                    self._landed(tile)
            yield tiles

    def lands(self, landed: Callable[[Tile | None], None]) -> None:
        """On the thread that waits, ``landed`` is called with each tile before it is handed out; or with None, once,
        where all is waited for together."""
        self._landed = landed

    def hold(self, rank: int | None = None) -> None:
        """One more thing has to happen; ``rank``: that member has to do it."""
        with self._lock:
            self._left += 1
            if rank is not None:
                self._owed[rank] = self._owed.get(rank, 0) + 1

    def release(self, rank: int | None = None, tile: Tile | None = None) -> None:
        """One of the things has happened, and by it ``tile`` is there."""
        with self._lock:
            self._left -= 1
            last = not self._left
            if rank is not None:
                self._owed[rank] -= 1
            if tile is not None:
                self._tiles.append(tile)
        if last:
            self._end()
        elif self._woken is not None:
            self._woken.set()

    def there(self, tile: Tile) -> None:
        """A tile is there already."""
        self._tiles.append(tile)

    def begun(self, finish: Callable[[], None] | None, over: Callable[[Exchange], None]) -> None:
        """All of it has begun. ``finish`` is called once everything has happened, and before it is done; ``over`` when
        it is."""
        self._finish, self._over = finish, over
        self.release()

    def fail(self, error: Exception) -> None:
        """End all waits with this."""
        self._failure = self._failure or error
        if self._woken is not None:
            self._woken.set()

    def _end(self) -> None:
        if self._failure is None:
            if self._finish is not None:
                self._finish()
            self.done = True
        if self._woken is not None:
            self._woken.set()
        if self._over is not None:
            self._over(self)

    def _until(self, condition: Callable[[], bool], within_s: float) -> None:
        if condition():
            return
        began = monotonic()
        try:
            self._wait(condition, began + within_s, within_s)
        finally:
            _waited.seconds += monotonic() - began

    def _wait(self, condition: Callable[[], bool], deadline: float, within_s: float) -> None:
        while not condition():
            if self._failure is not None:
                raise self._failure
            with self._lock:
                owing = [rank for rank, count in self._owed.items() if count > 0]
            if monotonic() >= deadline:
                self._give_up(owing, within_s)
            if not owing or not self._read(owing[0], partial(self._enough, owing[0], condition, deadline)):
                self._sleep(condition, deadline)

    def _enough(self, rank: int, condition: Callable[[], bool], deadline: float) -> bool:
        return not self._owed[rank] or condition() or self._failure is not None or monotonic() >= deadline

    def _sleep(self, condition: Callable[[], bool], deadline: float) -> None:
        if self._woken is None:
            self._woken = threading.Event()
        self._woken.clear()
        if not condition() and self._failure is None:
            self._woken.wait(min(LOOK_AGAIN_S, max(0.0, deadline - monotonic())))

    def _give_up(self, owing: list[int], within_s: float) -> None:
        who = f"members {owing} have" if len(owing) > 1 else f"member {owing[0]} has" if owing else "the network has"
        why = f"{who} not done what was to be done within {within_s:g} s"
        rank = owing[0] if owing else None
        self._lost(why, rank)
        raise PeerLost(why, rank)
