"""Pages in which steps may have left NaN or infinity, to be cleared before anybody else's rows come into them. Pure.

A kernel should read nothing but what the present owner of a page has written. Where one masks by multiplying instead,
NaN that another session has left behind a session's end would become its own: nought times NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cloud_server.cache.moving import Move

NOWHERE = -1
"""Where noughts come from, in the moves of a step."""


class Unclean:
    """Numbers of pages of ``page_positions`` positions each."""

    def __init__(self, page_positions: int) -> None:
        self._size = page_positions
        self._pages: set[int] = set()

    def mark(self, table: Sequence[int], begin: int, end: int | None = None, kept: int = 0) -> None:
        """The pages of a session's ``table`` with its positions from ``begin`` up to ``end`` (none: all that follow),
        but for those with positions below ``kept``, which it keeps."""
        first = max(begin // self._size, -(-kept // self._size))
        self._pages.update(table[first : None if end is None else -(-end // self._size)])

    def take(self, pages: Collection[int] | None = None) -> list[Move]:
        """What clears them all, or those of ``pages``, which the next step has to begin with; they are marked no
        longer."""
        taken = self._pages if pages is None else self._pages.intersection(pages)
        self._pages = self._pages - taken
        return [(NOWHERE, page * self._size, self._size) for page in sorted(taken)]

    def failed(self, moves: Sequence[Move]) -> None:
        """A step that was to begin with these moves may not have made them."""
        self._pages.update(slot // self._size for begin, slot, _ in moves if begin == NOWHERE)
