"""Voltage: every member has all weights and computes some positions of every layer. Pure.

A ratio vector says who computes how much (V-B); here it may differ by layer. Behind each layer the members gather its
output, or the next layer's keys and values where that is faster; the last output goes to the portal (Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from device_agent.edge.orders import orders
from device_agent.edge.plan import GroupPlan, Rows, Tensor, Whole
from device_agent.edge.ratios import by_speed, even
from device_agent.edge.search import EXHAUSTIVE, Parts, best_parts
from device_agent.edge.shares import handed_out
from device_agent.edge.shares import ways as count_ways
from device_agent.edge.task import Task

MODE = "voltage"

SEARCHED = 2
"""Where ratios can be cut in many ways, only so many ways to exchange are searched: the best at simple ratios."""


def plan_voltage(task: Task, ratios: Sequence[float] | None = None) -> GroupPlan:
    """The fastest plan that was found.

    ratios: of the members' rows; None: they are searched for, beginning at even ones and at those by speed.

    Raises DoesNotFit where a device has too little memory for the whole model.
    """
    ways = _ways(task)
    task.fitting(_plan(task, task.members, [ways[0][1]] * task.shape.layers))
    plans = []
    for members, way in ways:
        begun = [even(task), by_speed(task, members)] if ratios is None else [ratios]
        rated = [_going_on(task, _rated(task, members, way, shares)) for shares in begun]
        plans.append(min(rated, key=task.seconds))
    if ratios is None:
        plans.sort(key=task.seconds)
        few = count_ways(task.work.rows, len(task.members)) <= EXHAUSTIVE
        plans = [_searched(task, plan) for plan in (plans if few else plans[:SEARCHED])]
    return task.fitting(min(plans, key=task.seconds))


def plan_published(task: Task, ratios: Sequence[float] | None = None) -> GroupPlan:
    """The paper's own: hidden states go to everybody, and nothing is computed meanwhile; even ratios unless given.

    Raises DoesNotFit where a device has too little memory for the whole model.
    """
    way = Rows((), Whole(0), overlap=False)
    return task.fitting(_going_on(task, _rated(task, task.members, way, ratios or even(task))))


def fastest_layer(task: Task) -> Rows:
    """How all members would best share a layer by rows, whatever their memory, each having all keys and values."""
    plans = [_rated(task, members, way) for members, way in _ways(task) if not way.prefix]
    layer = min(plans, key=lambda plan: task.prefill(plan).seconds).layers[0]
    assert isinstance(layer, Rows)
    return layer


def _ways(task: Task) -> list[tuple[tuple[str, ...], Rows]]:
    """All ways to exchange what a layer needs, and the members in their order, without ratios yet."""
    members = task.members
    at = members.index(task.portal) if task.portal in members else 0
    ways = [
        (members, Rows((), Whole(at), keys_values=keys_values, overlap=overlap))
        for overlap in (True, False)
        for keys_values in (False, True)
    ]
    if task.shape.causal and len(members) > 1:
        # Only the last member gets all keys and values: often best the portal, which goes on with them.
        step = Whole(len(members) - 1)
        for ordered in dict.fromkeys([members, _portal_last(task)]):
            ways += [(ordered, Rows((), step, keys_values=keys_values, prefix=True)) for keys_values in (False, True)]
    return ways


def _portal_last(task: Task) -> tuple[str, ...]:
    if task.portal in task.members:
        return (*(name for name in task.members if name != task.portal), task.portal)
    speeds = dict(zip(task.members, by_speed(task), strict=True))
    return tuple(sorted(task.members, key=lambda name: speeds[name]))


def _plan(task: Task, members: tuple[str, ...], layers: Sequence[Rows]) -> GroupPlan:
    filled = [layer if layer.rows else replace(layer, rows=tuple(even(task))) for layer in layers]
    return GroupPlan(MODE, members, task.portal, tuple(filled), embeds_all=True)


def _rated(task: Task, members: tuple[str, ...], way: Rows, ratios: Sequence[float] | None = None) -> GroupPlan:
    """All layers with these ratios, those by speed if None, and each member's order by what was measured."""
    shares = by_speed(task, members) if ratios is None else ratios
    layer = _ordered(task, members, way, handed_out(task.work.rows, shares))
    return _plan(task, members, [replace(layer, rows=tuple(shares))] * task.shape.layers)


def _ordered(task: Task, members: tuple[str, ...], way: Rows, parts: Parts) -> Rows:
    reordered: tuple[bool, ...] = ()
    if not way.keys_values and len(members) > 1:
        reordered = tuple(
            order.reordered for order in orders(task.shape, task.costs(members), parts, one_shot=not task.work.new)
        )
    return replace(way, rows=tuple(map(float, parts)), reordered=reordered if any(reordered) else ())


def _searched(task: Task, plan: GroupPlan) -> GroupPlan:
    """The plan with better ratios, where there are some: of all layers, then of the first and of the last alone, since
    nothing is gathered for the first, and not everybody gets what the last makes."""
    rows, last = task.work.rows, task.shape.layers - 1
    starts = [handed_out(rows, even(task)), handed_out(rows, by_speed(task, plan.members))]

    def changed(parts: Parts, layers: Sequence[int]) -> GroupPlan:
        way = plan.layers[0]
        assert isinstance(way, Rows)
        layer = _ordered(task, plan.members, way, parts)
        return replace(plan, layers=tuple(layer if at in layers else old for at, old in enumerate(plan.layers)))

    best = best_parts(rows, starts, lambda parts: task.prefill(changed(parts, range(last + 1))).seconds)
    plan = min(plan, changed(best, range(last + 1)), key=task.seconds)
    for at in {0, last}:
        parts = best_parts(rows, [best], lambda parts, at=at: task.prefill(changed(parts, [at])).seconds)  # type: ignore[misc]
        plan = min(plan, changed(parts, [at]), key=task.seconds)
    return plan


def _going_on(task: Task, plan: GroupPlan) -> GroupPlan:
    """The plan with the fastest way to go on from the prompt: one member alone, or all by heads and columns."""
    layer = plan.layers[0]
    assert isinstance(layer, Rows)
    if not task.work.new or layer.prefix:
        return plan
    speeds = by_speed(task, plan.members)
    shared = Tensor(handed_out(task.shape.kv_heads, speeds), handed_out(task.shape.intermediate, speeds))
    steps: list[Tensor | Whole] = [shared, *(Whole(member) for member in range(len(plan.members)))]
    plans = [replace(plan, layers=(replace(layer, step=step),) * len(plan.layers)) for step in steps]
    return min(plans, key=lambda one: task.step(one).seconds)
