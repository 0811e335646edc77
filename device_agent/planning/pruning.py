"""How many heads a prompt can be read with in a given time, and which are left out. Pure.

The paper's T_max is of a whole inference, so it is shared out over the layers as a whole: what matters is the time of
all of them together. Of one device's heads those go first whose loss is least, wherever they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from device_agent.planning.limit import LimitTooShort
from split_model.pruning.kept import HeadSets, KeptHeads

LEVELS = 12
"""Heads are pruned in so many steps of equal size: few sets of heads, whose weights are kept, serve all prompts."""


Places = tuple[tuple[int, ...], ...]
"""Of each layer, how many KV groups each member computes; () of a layer: as planned."""


@dataclass(frozen=True)
class PassCosts:
    """Seconds of one pass of a prompt through all layers, of this device or of its group, measured.

    Attributes:
        rows: the prompts' lengths, ascending, two or more.
        whole_s: with all heads. bare_s: with none.
    """

    rows: tuple[int, ...]
    whole_s: tuple[float, ...]
    bare_s: tuple[float, ...]

    def seconds(self, rows: int, share: float) -> float:
        """What `rows` rows take with a share of all heads' work, between 0 and 1; straight between what was measured,
        and beyond it as between the last two."""
        whole, bare = self._at(self.whole_s, rows), self._at(self.bare_s, rows)
        return bare + share * max(0.0, whole - bare)

    def _at(self, seconds: tuple[float, ...], rows: int) -> float:
        upper = min(max(1, bisect_left(self.rows, rows)), len(self.rows) - 1)
        (x0, x1), (y0, y1) = (each[upper - 1 : upper + 1] for each in (self.rows, seconds))
        return max(0.0, y0 + (rows - x0) * (y1 - y0) / (x1 - x0))


def work_share(sets: Sequence[KeptHeads]) -> float:
    """The share of all heads' work that is left. A head has two matrices of its own, for queries and output, and a KV
    head two, for keys and values, which are there as long as one of its heads is."""
    left = sum(len(each.heads) + len(each.groups) for each in sets)
    return left / sum(each.total + each.total // each.group for each in sets)


def pruned_sets(order: Sequence[tuple[int, int]], count: int, layers: int, total: int, group: int) -> HeadSets:
    """The sets of all layers where the first `count` of `order`, each a layer and a head of it, are left out."""
    gone: list[set[int]] = [set() for _ in range(layers)]
    for layer, head in order[:count]:
        gone[layer].add(head)
    return tuple(KeptHeads(tuple(head for head in range(total) if head not in each), total, group) for each in gone)


@dataclass(frozen=True)
class Level:
    """Some of a model's heads.

    Attributes:
        sets: of all layers.
        share: of the time that all heads take: what these take, between 0 and 1.
        places: of each layer of a group, of how many of its KV groups that are left each member computes; () where
            those who have them do.
    """

    sets: HeadSets
    share: float
    places: Places = ()


def levels_of(order: Sequence[tuple[int, int]], layers: int, total: int, group: int) -> list[Level]:
    """One device's, the first with all heads and the last with none, in an order in which they are left out.

    order: all heads of all layers, those to go first at the front. Raises ValueError where it has not each once.
    """
    check_order(order, layers, total)
    sets = [pruned_sets(order, len(order) * level // LEVELS, layers, total, group) for level in range(LEVELS + 1)]
    return [Level(each, work_share(each)) for each in dict.fromkeys(sets)]


def check_order(order: Sequence[tuple[int, int]], layers: int, total: int) -> None:
    """Raises ValueError unless it has each head once."""
    if sorted(order) != [(layer, head) for layer in range(layers) for head in range(total)]:
        raise ValueError(f"the order must have each of {layers} x {total} heads once")


class PruningPlan:
    """The heads for any prompt: the first level that is fast enough."""

    def __init__(self, levels: Sequence[Level], costs: PassCosts) -> None:
        """levels: from most heads to none."""
        assert all(before.share >= after.share for before, after in pairwise(levels))
        self._levels, self._costs = levels, costs

    def within(self, rows: int, limit_s: float) -> Level:
        """The most heads with which a prompt of `rows` tokens is read within `limit_s` seconds.

        Raises LimitTooShort, with the floor, where none is few enough.
        """
        for level in self._levels:
            if self._costs.seconds(rows, level.share) <= limit_s:
                return level
        raise LimitTooShort(limit_s, self._costs.seconds(rows, 0.0), f"a prompt of {rows} tokens")

    def words(self, limit_s: float, longest: int) -> str:
        """Which prompts of up to `longest` tokens lose heads, and which are refused, in a few words."""
        lose, refused = (
            bisect_right(range(longest), limit_s, key=lambda before: self._costs.seconds(before + 1, share)) + 1
            for share in (1.0, 0.0)
        )
        if lose > longest:
            return f"no prompt takes longer than {limit_s:g} s, so none loses heads"
        said = f"prompts of {lose} tokens or more lose heads to be read within {limit_s:g} s"
        return said + (f"; those of {refused} or more take longer without any" if refused <= longest else "")
