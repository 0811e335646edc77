"""Which heads a group reads a prompt with, and who computes them. Pure.

What counts is the member that ends a layer last. So of each layer as many KV groups are left out as the order of their
effects says, those that are left are handed out so that the last is done soonest, and whoever would wait for it keeps
what there is time for. Nobody computes more groups than are planned for it, which is what it has memory for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import fmean

from device_agent.planning.head_allocation import HeadTimes, soonest
from device_agent.planning.pruning import LEVELS, Level, check_order
from split_model.pruning.kept import HeadSets, KeptHeads


def levels_in_group(
    order: Sequence[tuple[int, int]], times: Sequence[HeadTimes], first: int, total: int, group: int
) -> list[Level]:
    """The first with all heads and the last with none.

    Args:
        order: all heads of all layers of the model, those to go first at the front; a KV group goes by the mean of
            its heads.
        times: of each layer, of heads alone: the rest is measured with no head at all.
        first: the group's first layer; those before it are one device's.
        total, group: heads of a layer, and of a KV group.

    Raises ValueError where the order has not each head once.
    """
    check_order(order, len(times), total)
    rank = {head: at / len(order) for at, head in enumerate(order)}
    groups = range(total // group)
    importance = [
        [fmean(rank[layer, head] for head in range(each * group, (each + 1) * group)) for each in groups]
        for layer in range(len(times))
    ]
    units = sorted(product(range(len(times)), groups), key=lambda unit: (importance[unit[0]][unit[1]], unit))
    found: dict[HeadSets, Level] = {}
    for level in range(LEVELS + 1):
        left = [len(groups)] * len(times)
        for layer, _ in units[: len(units) * level // LEVELS]:
            left[layer] -= 1
        made = _level(times, importance, left, first, total, group)
        found.setdefault(made.sets, made)
    return list(found.values())


def _level(
    times: Sequence[HeadTimes], importance: Sequence[Sequence[float]], left: Sequence[int], first: int, *of: int
) -> Level:
    sets: list[KeptHeads] = []
    places: list[tuple[int, ...]] = []
    taken_s = 0.0
    for layer, (each, scores, kept) in enumerate(zip(times, importance, left, strict=True)):
        allocation = soonest(each, scores, kept)
        sets.append(KeptHeads.of_groups((head for heads in allocation.members for head in heads), *of))
        alone = sets[-1].is_all or layer < first or sum(len(seconds) > 1 for seconds in each.heads) < 2
        places.append(() if alone else allocation.counts)
        taken_s += each.seconds(allocation.counts)
    all_s = sum(each.seconds([len(seconds) - 1 for seconds in each.heads]) for each in times)
    return Level(tuple(sets), taken_s / all_s, tuple(places[first:]))
