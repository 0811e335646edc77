"""LIME's plans of a model that reads one text and writes another: encoder and decoder, each a plain pipeline. Pure.

An encoder is used once a text and its decoder once a token, so what has no room is the encoder's first. Segments would
hide nothing more: a step passes the decoder alone, and meanwhile nobody reads what the encoder will need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from device_agent.planning.allocation import allocate
from device_agent.planning.lime_allocations import MODE, halves_of, planned, rooms_of, sizes_of
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.residency import Sizes, fewest
from device_agent.planning.shares import handed_out
from device_agent.planning.task import Task
from split_model.offload.file_pieces import SCRATCH_BYTES
from split_model.offload.layout import padded
from split_model.offload.units import HALVES, Unit, spread


def plan_halves(task: Task) -> GroupPlan:
    """The fastest plan that was found: with all in memory, where that fits, else with layers by memory or by speed.

    Raises DoesNotFit where not even one unit at a time fits, and says who lacks how much.
    """
    resident = allocate(rooms_of(task, task.work.rows), task.shape.layers, 1, sizes_of(task), resident=True)
    if resident is not None:
        return task.fitting(planned(task, resident, 1))
    tasks = task, task.uncoded()  # To decode takes memory, too.
    plans = [_streamed(of, plan, places) for of in tasks for plan in _handed_out(task) for places in (2, 1)]
    fitting = [plan for plan in plans if not task.lacks(plan)]
    if not fitting:
        raise DoesNotFit(MODE, task.lacks(plans[-1]))
    return task.fitting(min(fitting, key=task.seconds))


def _handed_out(task: Task) -> Iterator[GroupPlan]:
    """Encoder and decoder each to all members, by memory first."""
    shape, budgets = task.shape, {device.name: device.memory_bytes for device in task.profile.devices}
    nothing = task.held(GroupPlan(MODE, (task.portal,), task.portal, (Whole(0),) * shape.layers))[task.portal]
    room = [float(max(budgets[name] - nothing.ends * (name == task.portal), 1)) for name in task.members]
    rooms = rooms_of(task, task.work.sessions)
    shares = room, [1 / each.layer_s for each in rooms]
    readers = shape.layers - shape.cross_layers
    for of_reader, of_writer in product(shares, repeat=2):
        counts = [handed_out(readers, of_reader), handed_out(shape.cross_layers, of_writer)]
        owners = [member for half in counts for member, count in enumerate(half) for _ in range(count)]
        holding = sorted(set(owners))
        names = tuple(task.members[member] for member in holding)
        yield GroupPlan(MODE, names, task.portal, tuple(Whole(holding.index(owner)) for owner in owners))


def _streamed(task: Task, plan: GroupPlan, places: int) -> GroupPlan:
    """The plan with as much streamed as each member has too little memory for, and rings for so many of its units."""
    devices, held = {device.name: device for device in task.profile.devices}, task.held(plan)
    streamed, rings, coded = [], [], []
    for member, name in enumerate(plan.members):
        lacking, device = held[name].total - devices[name].memory_bytes, devices[name]
        own = [number for number, layer in enumerate(plan.layers) if layer == Whole(member)]
        found, ring = _units(task, own, lacking + SCRATCH_BYTES * device.codes, places) if lacking > 0 else ([], 0)
        if not device.read_bytes_s:
            found, ring = [], 0
        streamed.append(tuple(sorted(found)))
        rings.append(ring)
        coded.append(bool(found) and device.codes)
    if not any(streamed):
        return plan
    given = replace(plan, streamed=tuple(streamed), ring_bytes=tuple(rings))
    return replace(given, coded=tuple(coded)) if any(coded) else given


def _units(task: Task, own: Sequence[int], lacking: int, places: int) -> tuple[list[Unit], int]:
    """Of a member's layers, units of so many bytes and of the ring, which has so many places: the encoder's first."""
    shape = task.shape
    turn = shape.layers - shape.cross_layers
    reading, writing = [layer for layer in own if layer < turn], [layer for layer in own if layer >= turn]
    largest = (writing or reading)[-1]
    matrices = [[padded(shape.dtype_bytes * size) for size in _sizes(task, largest, half)] for half in HALVES]
    ring = places * max(map(sum, matrices)) + (max(map(max, matrices)) if places > 1 else 0)
    left, found = lacking + ring, list[Unit]()
    for layers in (reading, writing):
        if not layers or left <= 0:
            continue
        attention, mlp = (shape.dtype_bytes * sum(_sizes(task, layers[0], half)) for half in HALVES)
        sizes = Sizes(attention, mlp, 0)
        counts = fewest(len(layers), sizes, left) or (len(layers), len(layers))
        for half, count in zip(HALVES, counts, strict=True):
            found += [Unit(layer, half) for layer in spread(layers, count)]
        left -= counts[0] * attention + counts[1] * mlp
    return found, ring


def _sizes(task: Task, layer: int, half: str) -> tuple[int, ...]:
    return next(task.shape.matrices(each, held, layer) for each, held in halves_of(task.shape) if each == half)
