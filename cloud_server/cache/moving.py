"""Which keys and values a step first takes elsewhere: those of kept nodes, and those that a fork begins with. Pure.

A position's *slot* is a number in the pool; a page has ``size`` of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cloud_server.cache.pages import Run

Key = tuple[int, int]
"""A session's name in the server: the connection it came on, and its number there."""

Move = tuple[int, int, int]
"""So many consecutive slots go to other slots: ``(from, to, count)``."""


def kept(table: Sequence[int], size: int, position: int, nodes: Sequence[int]) -> list[Move]:
    """The nodes ``nodes`` behind ``position`` to the positions from there on, in the pages ``table`` of their session;
    those that are there already stay."""

    def slot(at: int) -> int:
        page, offset = divmod(at, size)
        return table[page] * size + offset

    return [(slot(position + node), slot(position + at), 1) for at, node in enumerate(nodes) if node != at]


def copied(source: Sequence[Run], target: Sequence[Run], size: int, positions: int) -> list[Move]:
    """The first ``positions`` positions of a session to those of another, each with its pages, in as few pieces as
    there can be. Both have room for them."""
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


def _slots(runs: Sequence[Run], size: int) -> Iterator[Run]:
    return ((begin * size, end * size) for begin, end in runs)
