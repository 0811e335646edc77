"""EdgeFormer's exact mode: blocks where they are fastest, and of each layer lent what pays by the profile. Pure.

Lending pays on long sequences and slow processors; elsewhere another exact form does better. So those are looked at
too: no plan is slower, by its prediction, than the forms of the group that were found, or than any device alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from device_agent.planning.baselines import plan_local
from device_agent.planning.block_allocation import NoRoom, exactly
from device_agent.planning.block_ways import block_devices, block_hops
from device_agent.planning.edgeshard import layers_room, plan_edgeshard
from device_agent.planning.fastest import Way, fastest, pure_forms
from device_agent.planning.forms import Layer, Lent, Whole
from device_agent.planning.joint import plan_jointly
from device_agent.planning.lending_search import WAYS, Lending, LendingSearch, LentLayer
from device_agent.planning.plan import GroupPlan
from device_agent.planning.task import Task
from device_agent.planning.voltage import plan_voltage

MODE = "edgeformer"

_NOTHING_LENT = Lending("pipeline", heads=False, projections=False, columns=False, steps_apart=False)


def plan_edgeformer(task: Task) -> GroupPlan:
    """The fastest exact plan that was found, `considered` saying among which. Raises DoesNotFit where none fits."""
    return fastest(MODE, task, [*_other_forms(task), *_lending(task)])


def _other_forms(task: Task) -> Iterator[Way]:
    """All other exact forms of the group, and each device alone; none by rows where heads may be left out."""
    for member in task.members:
        yield f"{member} alone", partial(plan_local, task, member)
    yield "pipeline", partial(plan_blocks, task)
    yield from pure_forms(task)
    yield "galaxy", partial(plan_jointly, task)
    if not task.work.prunes:
        yield "voltage", partial(plan_voltage, task)


def plan_blocks(task: Task) -> GroupPlan:
    """Whole layers, nothing lent; by EdgeShard's programme where they are not alike, or where room is so short that it
    matters who has what comes before the first. Raises DoesNotFit."""
    rooms = [[layers_room(task, name, first) for name in task.members] for first in (True, False)]
    if task.shape.cross_layers or rooms[0] != rooms[1]:
        return plan_edgeshard(task)
    return lent_plan(task, LendingSearch(task), _NOTHING_LENT)


def _lending(task: Task) -> Iterator[Way]:
    """Each way to lend, with the blocks allocated exactly for it; one word for ways that come to the same."""
    if task.shape.cross_layers or len(task.members) == 1:
        return
    search = LendingSearch(task)
    for way in WAYS:
        if task.work.new or not way.steps_apart:
            yield way.name, partial(lent_plan, task, search, way)


def lent_plan(task: Task, search: LendingSearch, way: Lending) -> GroupPlan:
    """Blocks at their homes as is fastest where these lend; so many layers lend as memory allows."""
    best = [search.best(home, way) for home in range(len(task.members))]
    devices = block_devices(task, [each.seconds for each in best])
    try:
        runs = exactly(task.shape.layers, devices, block_hops(task))
        homes = [at for at, count in runs for _ in range(count)]
    except NoRoom:  # Whole; what is lent with its projections home need not hold.
        homes = [min(range(len(best)), key=lambda at: best[at].seconds)] * task.shape.layers
    return _most_lent(task, homes, best)


def _most_lent(task: Task, homes: list[int], best: list[LentLayer]) -> GroupPlan:
    """The plan in which all layers lend, else so many of the first ones as there is memory for."""

    def plan(lent: int) -> GroupPlan:
        layers = tuple(best[home].layer if at < lent else Whole(home) for at, home in enumerate(homes))
        return _narrowed(GroupPlan(MODE, task.members, task.portal, layers))

    low, high = 0, len(homes)
    while low < high:
        middle = high if (low, high) == (0, len(homes)) else (low + high + 1) // 2
        low, high = (low, middle - 1) if task.lacks(plan(middle)) else (middle, high)
    return task.fitting(plan(low))


def _narrowed(plan: GroupPlan) -> GroupPlan:
    """The plan without members that have no part in it."""
    used = sorted({member for layer in set(plan.layers) for member in _members(layer)})
    made = {layer: _numbered(layer, used) for layer in set(plan.layers)}
    names = tuple(plan.members[at] for at in used)
    return replace(plan, members=names, layers=tuple(made[layer] for layer in plan.layers))


def _members(layer: Layer) -> set[int]:
    if isinstance(layer, Lent):
        taken = zip(layer.groups, layer.columns, strict=True)
        return {layer.home, *(at for at, units in enumerate(taken) if any(units))}
    assert isinstance(layer, Whole)
    return {layer.member}


def _numbered(layer: Layer, used: list[int]) -> Layer:
    if isinstance(layer, Lent):
        groups, columns = (tuple(units[at] for at in used) for units in (layer.groups, layer.columns))
        return replace(layer, home=used.index(layer.home), groups=groups, columns=columns)
    assert isinstance(layer, Whole)
    return Whole(used.index(layer.member))
