"""Layers shared by heads and columns whose members read from their disks what has no room, on the clocks. Pure.

Every member reads units of its own shards into its own ring; an all-reduce waits for the slowest of them.
"""

from __future__ import annotations

from device_agent.planning.by_heads import run_by_heads
from device_agent.planning.costs import MemberCosts
from device_agent.planning.course import Course
from device_agent.planning.holding import HeldRows
from device_agent.planning.lan import Lan
from device_agent.planning.plan import GroupPlan, Hybrid, Layer, Sharded
from device_agent.planning.ring import Ring
from device_agent.planning.shape import ModelShape
from split_model.offload.units import Half, Unit

STEPS = 8
"""So many steps are played; what one takes is the mean of the later half, since what a ring has ahead may come again
only after several."""

PassedShards = tuple[float, tuple[float, ...], tuple[tuple[float, ...], ...]]
"""Seconds, seconds that each node computes, and bytes that each node sends, by layer."""


class ShardReads:
    """What the members of one plan read.

    Args:
        full: whether a pause has filled the rings.
    """

    def __init__(self, shape: ModelShape, lan: Lan, plan: GroupPlan, full: bool) -> None:
        """Raises ValueError where a member reads from a disk that was not measured."""
        self._sizes = [
            {unit: plan.unit_bytes(shape, member, unit) for unit in units} for member, units in enumerate(plan.streamed)
        ]
        self._rings: list[Ring] = []
        for member, sizes in enumerate(self._sizes):
            device = lan.devices[member]
            if sizes and not device.read_bytes_s:
                raise ValueError(f"{device.name}: its disk was not measured, so nothing can be read while it is used")
            room = plan.ring_room(shape, member) if sizes else 0
            ahead = sizes.values() if full else ()
            self._rings.append(Ring(room, device.read_bytes_s or 1.0, plan.prefetch, ahead))

    def begin(self, course: Course, number: int, half: Half) -> None:
        """Each member that streams this half layer waits until it is there."""
        for member, sizes in enumerate(self._sizes):
            size = sizes.get(Unit(number, half))
            if size is not None:
                course.at[member] = max(course.at[member], self._rings[member].read(size, course.at[member])[1])

    def end(self, course: Course, number: int, half: Half) -> None:
        """It has been used."""
        for member, sizes in enumerate(self._sizes):
            if Unit(number, half) in sizes:
                self._rings[member].release(course.at[member])


def play_shards(
    shape: ModelShape, lan: Lan, costs: MemberCosts, plan: GroupPlan, rows: int, cached: int, wanted: int
) -> PassedShards:
    """A prompt behind a pause where nothing is cached; else a step of so many sessions, once steps repeat.

    Raises ValueError where a layer is not shared by heads, or a disk was not measured.
    """
    course = Course(lan, shape.layers)
    reads = ShardReads(shape, lan, plan, full=not cached)
    steps = STEPS if cached else 1
    layers = [_shared(layer, number, bool(cached)) for number, layer in enumerate(plan.layers)]
    ends: list[float] = []
    for _ in range(steps):
        course.busy = [0.0] * len(course.busy)
        course.sent = [[0.0] * len(row) for row in course.sent]
        on = HeldRows(shape, lan, course, costs, rows, cached, reads)
        on.begin()
        for number, layer in enumerate(layers):
            course.layer = max(number - 1, 0)
            run_by_heads(on, number, layer)
        course.layer = shape.layers - 1
        on.end(wanted)
        ends.append(course.at[lan.portal])
    later = ends[steps // 2 - 1 :] if steps > 1 else [0.0, *ends]
    seconds = (later[-1] - later[0]) / (len(later) - 1)
    return seconds, tuple(course.busy), tuple(tuple(row) for row in course.sent)


def _shared(layer: Layer, number: int, step: bool) -> Sharded | Hybrid:
    if not isinstance(layer, (Sharded, Hybrid)):
        raise ValueError(f"layer {number} is neither whole at one member nor shared by heads, so it is not streamed")
    return layer.step if step and isinstance(layer, Hybrid) else layer
