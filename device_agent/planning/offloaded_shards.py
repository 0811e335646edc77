"""What LIME is compared with, shared by heads and columns: each member streams units of its own shards. Pure.

Both try shares by the members' memory and shares by their speed, and keep the faster: the papers' own shares suppose
that all fits. Each raises DoesNotFit where not even one unit at a time fits beside the keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from device_agent.planning.galaxy import capacities
from device_agent.planning.lime_allocations import halves_of
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan, Hybrid, Layer, Sharded
from device_agent.planning.shares import handed_out
from device_agent.planning.task import Task
from split_model.offload.units import HALVES, Half, Unit

Shares = Sequence[float]


def plan_tpi_llm(task: Task) -> GroupPlan:
    """TPI-LLM: tensor parallel, and of whoever lacks memory all units pass a window that takes all that is left of it.

    Of a window nothing stays from one step to the next: what is used makes room for what comes behind it.
    """

    def layer_of(attention: Shares, mlp: Shares, _: Shares) -> Layer:
        return Sharded(handed_out(task.shape.kv_heads, attention), handed_out(task.shape.intermediate, mlp))

    return _faster(task, "tpi-llm", layer_of, _windowed)


def plan_galaxy_offloaded(task: Task) -> GroupPlan:
    """Galaxy + offloading: layers by Scheme-1, of which each member keeps what fits beside a ring of one unit."""

    def layer_of(attention: Shares, mlp: Shares, rows: Shares) -> Layer:
        parts = tuple(float(part) for part in handed_out(task.work.rows, rows))
        return Hybrid(handed_out(task.shape.kv_heads, attention), handed_out(task.shape.intermediate, mlp), parts)

    return _faster(task, "galaxy", layer_of, _kept)


def _faster(
    task: Task,
    mode: str,
    layer_of: Callable[[Shares, Shares, Shares], Layer],
    streamed_of: Callable[[Task, GroupPlan, int], list[Unit]],
) -> GroupPlan:
    budgets = {device.name: float(device.memory_bytes) for device in task.profile.devices}
    memory = [budgets[name] for name in task.members]
    found: list[GroupPlan] = []
    lacks: DoesNotFit | None = None
    for shares in ((memory, memory, memory), capacities(task)):
        plan = GroupPlan(mode, task.members, task.portal, (layer_of(*shares),) * task.shape.layers)
        try:
            found.append(task.fitting(_with(task, plan, streamed_of)))
        except DoesNotFit as error:
            lacks = lacks or error
    if not found:
        assert lacks is not None
        raise lacks
    return min(found, key=task.seconds)


def _with(task: Task, plan: GroupPlan, streamed_of: Callable[[Task, GroupPlan, int], list[Unit]]) -> GroupPlan:
    """The plan with what members stream, and rings: of a window all that is left, see `_windowed`."""
    over = {lack.device for lack in task.lacks(plan)}
    if not over:
        return plan
    empty = replace(plan, streamed=((),) * len(plan.members), ring_bytes=(0,) * len(plan.members))
    streamed, rings = [], []
    for member, name in enumerate(plan.members):
        units = streamed_of(task, empty, member) if name in over else []
        everything = _everything(task, plan, member)
        ring = max((plan.unit_bytes(task.shape, member, unit) for unit in units), default=0)
        if units and len(units) == len(everything):
            ring = max(ring, _room(task, empty, member, units))
        streamed.append(tuple(units))
        rings.append(ring)
    return replace(plan, streamed=tuple(streamed), ring_bytes=tuple(rings))


def _windowed(task: Task, plan: GroupPlan, member: int) -> list[Unit]:
    return _everything(task, plan, member)


def _kept(task: Task, plan: GroupPlan, member: int) -> list[Unit]:
    """As few as make the rest fit, of MLPs before attentions, spread over the layers."""
    everything = _everything(task, plan, member)
    ordered: list[Unit] = []
    for half in reversed(HALVES):
        ordered += _spread([unit for unit in everything if unit.half == half])
    low, high = 1, len(ordered)
    while low < high:
        count = (low + high) // 2
        units = ordered[:count]
        ring = max(plan.unit_bytes(task.shape, member, unit) for unit in units)
        low, high = (low, count) if _room(task, plan, member, units) >= ring else (count + 1, high)
    return sorted(ordered[:low])


def _spread(units: list[Unit]) -> list[Unit]:
    """The first so many of them lie far from one another, however many: by their numbers with the bits turned round."""
    bits = max(len(units) - 1, 1).bit_length()
    return [units[at] for at in sorted(range(len(units)), key=lambda at: int(f"{at:0{bits}b}"[::-1], 2))]


def _everything(task: Task, plan: GroupPlan, member: int) -> list[Unit]:
    """What a member has of all layers, in the order of use."""
    halves: list[Half] = [half for half, _ in halves_of(task.shape)]
    units = [Unit(layer, half) for layer in range(task.shape.layers) for half in halves]
    return [unit for unit in units if plan.unit_bytes(task.shape, member, unit)]


def _room(task: Task, plan: GroupPlan, member: int, units: Sequence[Unit]) -> int:
    """Bytes left for a ring where a member streams these."""
    name = plan.members[member]
    streamed = tuple(tuple(units) if at == member else () for at in range(len(plan.members)))
    budget = next(device.memory_bytes for device in task.profile.devices if device.name == name)
    return budget - task.held(replace(plan, streamed=streamed))[name].total
