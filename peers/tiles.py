"""How rows are handed out among the members of a ring, and in which order tiles go round it. Pure.

A *share* is the rows of one member; some may have none. A *tile* is a share or a piece of it: what travels at once, and
what may be used, or given, before the rest is there. Members are counted by their *place* in the ring, from 0 on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple


class Tile(NamedTuple):
    """Rows ``begin`` to ``end`` of all, in the share of the member at ``place``. ``number`` tells tiles apart."""

    number: int
    place: int
    begin: int
    end: int


def evenly(rows: int, shares: int) -> list[int]:
    """So many shares that add up to ``rows``; the first ones have one more where they cannot all be the same."""
    each, more = divmod(rows, shares)
    return [each + (place < more) for place in range(shares)]


@lru_cache(maxsize=256)  # Every layer has the same.
def tiles_of(shares: tuple[int, ...], pieces: int = 1) -> list[Tile]:
    """All tiles, where each share is cut into as many pieces, or into its rows where it has fewer; none is empty.

    Raises ``ValueError`` for a share below 0, or less than one piece.
    """
    if pieces < 1 or min(shares, default=0) < 0:
        raise ValueError(f"no tiles of shares {shares} in {pieces} pieces")
    found = []
    for place, (rows, end) in enumerate(zip(shares, accumulate(shares), strict=True)):
        cuts = list(accumulate(evenly(rows, pieces), initial=end - rows))
        for piece, (begin, behind) in enumerate(pairwise(cuts)):
            if behind > begin:
                found.append(Tile(place * pieces + piece, place, begin, behind))
    return found


def joined(tiles: Iterable[Tile]) -> list[range]:
    """The rows of some tiles, in as few ranges as they make."""
    found: list[range] = []
    for tile in sorted(tiles, key=lambda tile: tile.begin):
        if found and found[-1].stop == tile.begin:
            found[-1] = range(found[-1].start, tile.end)
        else:
            found.append(range(tile.begin, tile.end))
    return found


@dataclass(frozen=True)
class Ring:
    """Who takes part, in the order in which tiles go round.

    Attributes:
        ranks: by place.
        place: this member's; -1: it is none of them.
    """

    ranks: tuple[int, ...]
    place: int

    @property
    def size(self) -> int:
        """How many take part."""
        return len(self.ranks)

    @property
    def before(self) -> int:
        """The rank of the member from which tiles come."""
        return self.ranks[self.place - 1]

    @property
    def behind(self) -> int:
        """The rank of the member to which they go."""
        return self.ranks[(self.place + 1) % self.size]

    @property
    def others(self) -> list[int]:
        """The ranks of all but this one."""
        return [rank for place, rank in enumerate(self.ranks) if place != self.place]

    def ends_at(self, tile: Tile) -> bool:
        """Whether a tile that is handed round comes to this member last: the next one is its owner."""
        return (self.place + 1) % self.size == tile.place

    def summed_order(self) -> list[int]:
        """The places in the order in which this member's share is summed: from the one behind it round to itself."""
        return [(self.place + step) % self.size for step in range(1, self.size + 1)]

    def given_order(self) -> list[int]:
        """The places whose shares a sum wants from this member, one after the other: its own last.

        The sum of a share begins behind its owner; so at first everyone sends the share of the one before.
        """
        return [(self.place - step) % self.size for step in range(1, self.size + 1)]
