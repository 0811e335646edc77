"""What a step first does to keys and values: those of kept nodes and those that a fork begins with go elsewhere, and
pages in which steps may have left NaN or infinity are cleared before anybody else's rows come into them. Pure.

A position's *slot* is a number in the pool; a page has ``size`` of them.

A kernel should read nothing but what the present owner of a page has written. Where one masks by multiplying instead,
NaN that another session has left behind a session's end would become its own: nought times NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from cloud_server.cache.pages import Run

Key = tuple[int, int]
"""A session's name in the server: the connection it came on, and its number there."""

Move = tuple[int, int, int]
"""So many consecutive slots go to other slots: ``(from, to, count)``."""

NOWHERE = -1
"""Where noughts come from."""


def kept(table: Sequence[int], size: int, position: int, nodes: Sequence[int]) -> list[Move]:
    """Return the moves that take the nodes ``nodes`` behind ``position`` to the positions from there on, in the pages
    ``table`` of their session. Those that are there already stay."""

    def slot(at: int) -> int:
        page, offset = divmod(at, size)
        return table[page] * size + offset

    return [(slot(position + node), slot(position + at), 1) for at, node in enumerate(nodes) if node != at]


def copied(source: Sequence[Run], target: Sequence[Run], size: int, positions: int) -> list[Move]:
    """Return the moves that copy the first ``positions`` positions of a session to those of another, in as few pieces
    as there can be. Both have pages for them."""
    moves: list[Move] = []
    sources, targets = _slots(source, size), _slots(target, size)
    begin, end = next(sources, (0, 0))
    to, to_end = next(targets, (0, 0))
    while positions:
        count = min(end - begin, to_end - to, positions)
        assert count > 0, "the pages do not hold the positions"
        moves.append((begin, to, count))
        positions -= count
        begin, to = begin + count, to + count
        if begin == end:
            begin, end = next(sources, (0, 0))
        if to == to_end:
            to, to_end = next(targets, (0, 0))
    return moves


class Unclean:
    """The pages that are to be cleared, by their numbers; each has ``size`` positions."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pages: set[int] = set()

    def mark(self, table: Sequence[int], begin: int, end: int | None = None, kept: int = 0) -> None:
        """Have pages of a session's ``table`` cleared: those with its positions from ``begin`` up to ``end`` (None: all
        that follow), but not those with positions below ``kept``."""
        first = max(begin // self._size, -(-kept // self._size))
        self._pages.update(table[first : None if end is None else -(-end // self._size)])

    def take(self, pages: Collection[int] | None = None) -> list[Move]:
        """Return the moves that clear them all, or those of ``pages``. The next step has to begin with them: they are
        marked no longer."""
        taken = self._pages if pages is None else self._pages.intersection(pages)
        self._pages = self._pages - taken
        return [(NOWHERE, page * self._size, self._size) for page in sorted(taken)]

    def cleared(self, moves: Sequence[Move]) -> set[int]:
        """Return the pages that these moves clear."""
        return {slot // self._size for begin, slot, _ in moves if begin == NOWHERE}

    def failed(self, moves: Sequence[Move]) -> None:
        """Mark the pages of these moves again: the step that was to make them has failed, perhaps before it did. No
        session may have them by now."""
        self._pages |= self.cleared(moves)


def _slots(runs: Sequence[Run], size: int) -> Iterator[Run]:
    return ((begin * size, end * size) for begin, end in runs)
