"""How many heads a prompt can be read with in a given time, and which are left out. Pure.

The paper's T_max is of a whole inference, so it is shared out over the layers as a whole: what matters is the time of
all of them together. Of one device's heads those go first whose loss is least, wherever they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from split_model.pruning.kept import HeadSets, KeptHeads

LEVELS = 12
"""Heads are pruned in so many steps of equal size: few sets of heads, whose weights are kept, serve all prompts."""


class LimitTooShort(ValueError):
    """No pruning can reach the limit: MLPs and projections' rest take longer.

    Attributes:
        floor_s: what it takes with no head at all.
    """

    def __init__(self, rows: int, limit_s: float, floor_s: float) -> None:
        super().__init__(
            f"a prompt of {rows} tokens takes {floor_s:.3g} s with all attention heads left out, and the limit is "
            f'{limit_s:.3g} s: shorten the prompt, raise --t-max, or ask with "exact": true, for which there is none'
        )
        self.floor_s = floor_s


@dataclass(frozen=True)
class PassCosts:
    """Seconds of one pass of a prompt through all layers of this device, measured.

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


class PruningPlan:
    """The sets for any prompt, by an order in which heads are left out."""

    def __init__(self, order: Sequence[tuple[int, int]], layers: int, total: int, group: int, costs: PassCosts) -> None:
        """order: all heads of all layers, those to go first at the front."""
        if sorted(order) != [(layer, head) for layer in range(layers) for head in range(total)]:
            raise ValueError(f"the order must have each of {layers} x {total} heads once")
        self._costs = costs
        counts = sorted({len(order) * level // LEVELS for level in range(LEVELS + 1)})
        sets = [pruned_sets(order, count, layers, total, group) for count in counts]
        self._levels = [(each, work_share(each)) for each in sets]
        assert all(before[1] >= after[1] for before, after in pairwise(self._levels))

    def within(self, rows: int, limit_s: float) -> HeadSets:
        """The most heads with which a prompt of `rows` tokens is read within `limit_s` seconds.

        Raises LimitTooShort, with the floor, where none is few enough.
        """
        for sets, share in self._levels:
            if self._costs.seconds(rows, share) <= limit_s:
                return sets
        raise LimitTooShort(rows, limit_s, self._costs.seconds(rows, 0.0))
