"""How many layers a group computes by each of several schemes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor


@dataclass(frozen=True)
class LayerCost:
    """What one layer takes by a scheme: seconds, and bytes of each member's memory."""

    seconds: float
    held: tuple[float, ...]


def best_counts(
    layers: int, first: LayerCost, second: LayerCost, third: LayerCost, room: Sequence[float]
) -> tuple[int, int] | None:
    """How many layers are best by the second and by the third scheme, the others being by the first.

    room: bytes that each member has for layers. None: they fit in no way.
    """
    best, least = None, float("inf")
    for threes in range(layers + 1):
        fewest, most = 0, layers - threes
        for member, has in enumerate(room):
            left = has - threes * third.held[member] - (layers - threes) * first.held[member]
            more = second.held[member] - first.held[member]
            # The second scheme may take more or less of a member than the first: a bound from above, or from below.
            if more > 0:
                most = min(most, floor(left / more))
            elif left < 0:
                fewest = max(fewest, -floor(left / -more)) if more < 0 else layers + 1
        for twos in {fewest, most} if fewest <= most else ():
            ones = layers - twos - threes
            seconds = ones * first.seconds + twos * second.seconds + threes * third.seconds
            if seconds < least:
                best, least = (twos, threes), seconds
    return best
