"""EdgeShard's partition: whole layers, each device a run of them, so that one request takes least. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.ratios import by_speed
from device_agent.planning.task import Task

MODE = "edgeshard"

ANY_ORDER = 8
"""Among more members than that, runs come in one order: to try all takes three times as long for each further one."""


@dataclass(frozen=True)
class _Begun:
    """A way to have the first layers done: seconds, and each member's number of layers, in their order."""

    seconds: float
    runs: tuple[tuple[int, int], ...]


def plan_edgeshard(task: Task) -> GroupPlan:
    """Its dynamic programme, over the layers that are done, who did some, and who is last.

    Each member takes one run of layers, as many as it has memory for, or none. What is least is the time of a request:
    its layers, and the hops between devices, the portal's included. Raises DoesNotFit where not all layers fit.
    """
    members, layers = range(len(task.members)), task.shape.layers
    until_bytes = [0, *accumulate(_layer_bytes(task, number) for number in range(layers))]
    rooms = [[_left_bytes(task, name, first) for name in task.members] for first in (False, True)]
    further_on = _in_order(task) if len(members) > ANY_ORDER else None
    until_s = [_layers_s(task, member) for member in members]
    names = [*task.members, task.portal]
    hop_s = [[request_hop_s(task, one, other) for other in names] for one in names]
    # By who did some (as bits, where that is not its place in the order), who is last and how many are done; before the
    # first the rows are at the portal.
    level: dict[tuple[int, int, int], _Begun] = {(0, len(names) - 1, 0): _Begun(0.0, ())}
    finished: list[_Begun] = []
    while level:
        further: dict[tuple[int, int, int], _Begun] = {}
        for (used, last, done), begun in level.items():
            free: Iterable[int] = (member for member in members if not used >> member & 1)
            for member in free if further_on is None else further_on[last]:
                end = bisect_right(until_bytes, until_bytes[done] + rooms[not done][member]) - 1
                for count in range(1, end - done + 1):
                    computing = until_s[member][done + count] - until_s[member][done]
                    seconds = begun.seconds + hop_s[last][member] + computing
                    key = used | 1 << member if further_on is None else 0, member, done + count
                    if key not in further or seconds < further[key].seconds:
                        further[key] = _Begun(seconds, (*begun.runs, (member, count)))
        for (_, last, done), begun in further.items():
            if done == layers:
                back = request_hop_s(task, names[last], task.portal, task.work.wanted)
                finished.append(_Begun(begun.seconds + back, begun.runs))
        level = {key: begun for key, begun in further.items() if key[2] < layers}
    if not finished:
        return task.fitting(_overfull(task))  # Says who lacks how much, or in another order it does fit.
    return task.fitting(_plan(task, min(finished, key=lambda begun: begun.seconds).runs))


def _plan(task: Task, runs: tuple[tuple[int, int], ...]) -> GroupPlan:
    members = tuple(task.members[member] for member, _ in runs)
    made = tuple(Whole(at) for at, (_, count) in enumerate(runs) for _ in range(count))
    return GroupPlan(MODE, members, task.portal, made)


def _in_order(task: Task) -> list[list[int]]:
    """Behind each member, and last behind the portal where nothing is done yet, whose turn it may be: the portal
    first, then the fastest."""
    speeds = by_speed(task)
    order = sorted(range(len(speeds)), key=lambda member: (task.members[member] != task.portal, -speeds[member]))
    behind = {member: order[at + 1 :] for at, member in enumerate(order)}
    return [*(behind[member] for member in range(len(order))), order]


def _overfull(task: Task) -> GroupPlan:
    """Everybody has what fits, and who has most memory the rest: the nearest to a plan there is."""
    budgets = {device.name: device.memory_bytes for device in task.profile.devices}
    counts, left = list[int](), task.shape.layers
    for name in task.members:
        counts.append(min(layers_room(task, name, first=not counts), left))
        left -= counts[-1]
    counts[max(range(len(counts)), key=lambda at: budgets[task.members[at]])] += left
    return _plan(task, tuple((member, count) for member, count in enumerate(counts) if count))


def layers_room(task: Task, name: str, first: bool) -> int:
    """How many of the largest layers a member has memory for; who has the first one also has what comes before it."""
    layers = task.shape.layers
    return min(max(_left_bytes(task, name, first) // _layer_bytes(task, layers - 1), 0), layers)


def _left_bytes(task: Task, name: str, first: bool) -> int:
    """Of a member's memory for layers; may be less than 0."""
    shape = task.shape
    plan = GroupPlan(MODE, (name,), task.portal, (Whole(0),) * shape.layers)
    alone = task.held(plan)[name]
    budget = next(device.memory_bytes for device in task.profile.devices if device.name == name)
    before = 0 if first else shape.entry_elements * shape.dtype_bytes
    return budget - alone.ends - alone.buffers + before


def _layer_bytes(task: Task, number: int) -> int:
    """Of a whole layer, with room for its keys and values."""
    shape = task.shape
    elements = shape.layer_elements(number, range(shape.kv_heads), range(shape.intermediate))
    return shape.dtype_bytes * (elements + shape.kept_elements(number, task.work.positions))


def _layers_s(task: Task, member: int) -> list[float]:
    """Seconds of all the work in the first layers: none, one, two and so on."""
    shape, costs, work = task.shape, task.costs(), task.work
    seen = (work.rows + 1) / 2 if shape.causal else work.rows
    seconds = []
    for number in range(shape.layers):
        steps = work.new if number >= shape.layers - shape.keeping_layers else 0
        step_s = costs.layer(member, number, 1, work.rows + work.new // 2 + 1, source=work.rows) if steps else 0.0
        rows = shape.passing(number, work.rows, work.wanted)
        seconds.append(costs.layer(member, number, rows, min(seen, rows), work.rows, work.rows) + steps * step_s)
    return [0.0, *accumulate(seconds)]


def request_hop_s(task: Task, source: str, target: str, rows: int | None = None) -> float:
    """Seconds that rows, all of the prompt if None, and each step's one take from one device to another."""
    return hop_s(task, source, target, rows or task.work.rows) + task.work.new * hop_s(task, source, target, 1)


def hop_s(task: Task, source: str, target: str, rows: int) -> float:
    """Seconds that rows take from one device to another, once."""
    if source == target:
        return 0.0
    link = next(link for link in task.profile.links if (link.source, link.target) == (source, target))
    return rows * task.shape.row_bytes / link.bytes_s + link.rtt_s / 2
