"""Whole units handed out by shares. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, pairwise
from math import comb


def handed_out(units: int, shares: Sequence[float]) -> tuple[int, ...]:
    """As many whole units as each has a share of all; together all of them.

    Ends are rounded cumulatively, so a part is off by at most one unit, and some may be 0. Raises ValueError for shares
    that are negative or all nought.
    """
    total = sum(shares)
    if not shares or min(shares) < 0 or not 0 < total < float("inf"):
        raise ValueError(f"{list(shares)} are no shares")
    ends = [round(units * end / total) for end in accumulate(shares)]
    return tuple(end - begin for begin, end in pairwise([0, *ends[:-1], units]))


def spans(parts: Sequence[int]) -> list[range]:
    """Where each part lies when they stand one behind the other."""
    return [range(begin, end) for begin, end in pairwise([0, *accumulate(parts)])]


def ways(units: int, parts: int) -> int:
    """How many ways there are to hand out whole units to so many parts."""
    return comb(units + parts - 1, parts - 1)


def all_ways(units: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Each of them."""
    for bars in combinations(range(units + parts - 1), parts - 1):
        yield tuple(right - left - 1 for left, right in pairwise((-1, *bars, units + parts - 1)))
