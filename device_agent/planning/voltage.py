"""Voltage: every member has all weights and computes some positions of every layer. Pure.

A ratio vector says who computes how much (V-B); here it may differ by layer. Behind each layer the members gather its
output, or the next layer's keys and values where that is faster; the last output goes to the portal (Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from device_agent.planning.orders import orders
from device_agent.planning.plan import ByRows, GroupPlan, Sharded, Whole
from device_agent.planning.ratios import by_speed, even
from device_agent.planning.search import EXHAUSTIVE, Parts, best_parts
from device_agent.planning.shares import handed_out
from device_agent.planning.shares import ways as count_ways
from device_agent.planning.task import Task

MODE = "voltage"

SEARCHED = 2
"""Where ratios can be cut in many ways, only so many ways to exchange are searched: the best at simple ratios."""


PIECES = (2, 4)
"""In so many pieces a member's rows may go out, where they do not go whole."""

SHORT = 4
"""Ratios are searched with so many layers."""


@dataclass(frozen=True)
class _Way:
    """How a layer's rows come to whom needs them, whatever the ratios.

    Attributes:
        members: in the order of their positions.
        layer: without ratios and orders.
        by_profile: whether each member takes Eq. 8 where it was measured to be faster; else nobody does.
    """

    members: tuple[str, ...]
    layer: ByRows
    by_profile: bool


def plan_voltage(task: Task, ratios: Sequence[float] | None = None) -> GroupPlan:
    """The fastest plan that was found.

    ratios: of the members' rows; None: they are searched for, beginning at even ones and at those by speed.

    Raises DoesNotFit where a device has too little memory for the whole model.
    """
    ways = _ways(task)
    task.fitting(_rated(task, ways[0], even(task)))
    plans: list[tuple[GroupPlan, _Way]] = []
    for way in ways:
        begun = [even(task), by_speed(task, way.members)] if ratios is None else [ratios]
        rated = [_going_on(task, _rated(task, way, shares)) for shares in begun]
        plans.append((min(rated, key=task.seconds), way))
    if ratios is None:
        plans.sort(key=lambda plan: task.seconds(plan[0]))
        few = count_ways(task.work.rows, len(task.members)) <= EXHAUSTIVE
        plans = [(_searched(task, plan, way), way) for plan, way in (plans if few else plans[:SEARCHED])]
    return task.fitting(min((plan for plan, _ in plans), key=task.seconds))


def plan_published(task: Task, ratios: Sequence[float] | None = None) -> GroupPlan:
    """The paper's own: hidden states go to everybody, and nothing is computed meanwhile; even ratios unless given.

    Raises DoesNotFit where a device has too little memory for the whole model.
    """
    way = _Way(task.members, ByRows((), Whole(0), overlap=False), by_profile=True)
    return task.fitting(_going_on(task, _rated(task, way, ratios or even(task))))


def fastest_layer(task: Task) -> ByRows:
    """How all members would best share a layer by rows, whatever their memory, each having all keys and values."""
    ways = [way for way in _ways(task) if not way.layer.prefix]
    plans = [_rated(task, way, by_speed(task, way.members)) for way in ways]
    layer = min(plans, key=lambda plan: task.prefill(plan).seconds).layers[0]
    assert isinstance(layer, ByRows)
    return layer


def _ways(task: Task) -> list[_Way]:
    shape, members = task.shape, task.members
    at = members.index(task.portal) if task.portal in members else 0
    layers = [
        (members, ByRows((), Whole(at), keys_values=keys_values, overlap=overlap))
        for overlap in (True, False)
        for keys_values in (False, True)
    ]
    layers += [(members, replace(layers[0][1], pieces=pieces)) for pieces in PIECES if len(members) > 1]
    if shape.causal and len(members) > 1:
        # Only the last member gets all keys and values: often best the portal, which goes on with them.
        step = Whole(len(members) - 1)
        for ordered in dict.fromkeys([members, _portal_last(task)]):
            layers += [
                (ordered, ByRows((), step, keys_values=keys_values, prefix=True, overlap=overlap))
                for keys_values, overlap in ((False, True), (False, False), (True, True))
            ]
    ways = [_Way(members, layer, by_profile=False) for members, layer in layers]
    if not task.work.new and not shape.rotary and not shape.key_norm:
        ways += [replace(way, by_profile=True) for way in ways if not way.layer.keys_values]
    return ways


def _portal_last(task: Task) -> tuple[str, ...]:
    if task.portal in task.members:
        return (*(name for name in task.members if name != task.portal), task.portal)
    speeds = dict(zip(task.members, by_speed(task), strict=True))
    return tuple(sorted(task.members, key=lambda name: speeds[name]))


def _rated(task: Task, way: _Way, ratios: Sequence[float]) -> GroupPlan:
    """All layers with these ratios."""
    layer = replace(_layer(task, way, handed_out(task.work.rows, ratios)), rows=tuple(ratios))
    return GroupPlan(MODE, way.members, task.portal, (layer,) * task.shape.layers)


def _layer(task: Task, way: _Way, parts: Parts) -> ByRows:
    """With so many rows for each member, and each one's order."""
    reordered: tuple[bool, ...] = ()
    if way.by_profile:
        found = orders(task.shape, task.costs(way.members), parts, one_shot=not task.work.new)
        reordered = tuple(order.reordered for order in found)
    return replace(way.layer, rows=tuple(map(float, parts)), reordered=reordered if any(reordered) else ())


def _searched(task: Task, plan: GroupPlan, way: _Way) -> GroupPlan:
    """The plan with better ratios, where there are some: of all layers, then of the first and of the last alone, since
    nothing is gathered for the first, and not everybody gets what the last makes.

    They are looked for with few layers, where those between stand for all.
    """
    going_on = plan.layers[0]
    assert isinstance(going_on, ByRows)
    short = task.shortened(min(task.shape.layers, SHORT))
    starts = [handed_out(task.work.rows, shares) for shares in (even(task), by_speed(task, plan.members))]

    def layer(parts: Parts) -> ByRows:
        return replace(_layer(task, way, parts), step=going_on.step)

    def of(first: Parts, middle: Parts, last: Parts, among: Task) -> GroupPlan:
        ends = [layer(first), layer(last)] if among.shape.layers > 1 else [layer(middle)]
        between = (layer(middle),) * (among.shape.layers - len(ends))
        return replace(plan, layers=(ends[0], *between, *ends[1:]))

    def seconds(first: Parts, middle: Parts, last: Parts) -> float:
        return short.prefill(of(first, middle, last, short)).seconds

    middle = best_parts(task.work.rows, starts, lambda parts: seconds(parts, parts, parts))
    first = best_parts(task.work.rows, [middle], lambda parts: seconds(parts, middle, middle))
    last = best_parts(task.work.rows, [middle], lambda parts: seconds(first, middle, parts))
    return min(plan, of(middle, middle, middle, task), of(first, middle, last, task), key=task.seconds)


def _going_on(task: Task, plan: GroupPlan) -> GroupPlan:
    """The plan with the fastest way to go on from the prompt: one member alone, or all by heads and columns."""
    layer = plan.layers[0]
    assert isinstance(layer, ByRows)
    if not task.work.new or layer.prefix:
        return plan
    speeds = by_speed(task, plan.members)
    shared = Sharded(handed_out(task.shape.kv_heads, speeds), handed_out(task.shape.intermediate, speeds))
    steps: list[Sharded | Whole] = [shared, *(Whole(member) for member in range(len(plan.members)))]
    plans = [replace(plan, layers=(replace(layer, step=step),) * len(plan.layers)) for step in steps]
    return min(plans, key=lambda one: task.step(one).seconds)
