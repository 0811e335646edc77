"""A pipeline on the clocks: stages, links, and what members read from their disks meanwhile (LIME, IV-A). Pure.

Each device computes one thing at a time, in the order of the steps, of the stages, and of the micro-batches in them; it
has one port out and one in, and one reader of its disk (see `ring`). The next step of a micro-batch begins when its
token is there. So what is covered by what needs no formula, as Eq. 1 of the paper is one.
"""

from __future__ import annotations

from typing import NamedTuple

from device_agent.planning.costs import MemberCosts
from device_agent.planning.lan import Lan
from device_agent.planning.plan import GroupPlan
from device_agent.planning.played import Event, Played
from device_agent.planning.ring import Ring, streamed_in, turns_of
from device_agent.planning.shape import ModelShape
from device_agent.planning.stages import Stage, prompt_parts, stages_of
from split_model.offload.units import HALVES, Unit

STEPS = 24
"""So many steps are played at most until they repeat."""

STEADY = 1e-6
"""Steps that differ by less than this share of them are alike."""


def play_steps(
    shape: ModelShape, lan: Lan, costs: MemberCosts, plan: GroupPlan, rows: float, cached: int, steps: int = STEPS
) -> Played:
    """Decode steps until they repeat, at most so many.

    rows: of each micro-batch, of which the plan says how many there are. cached: positions that each row attends to.
    """
    course = _Pipeline(shape, lan, costs, plan, plan.micro_batches, rows, cached, rows)
    ends: list[float] = []
    alike = 0
    while len(ends) <= steps and alike < 2:
        course.pass_layers()
        ends.append(course.at_portal())
        if len(ends) > 2:
            now, before = ends[-1] - ends[-2], ends[-2] - ends[-3]
            alike = alike + 1 if abs(now - before) <= STEADY * now else 0
    # What never repeats from one step to the next does so from some steps to the next: the mean of the later half.
    half = 1 if alike else len(ends) // 2
    return course.played((ends[-1] - ends[-1 - half]) / half)


def play_prompt(
    shape: ModelShape, lan: Lan, costs: MemberCosts, plan: GroupPlan, rows: int, cached: int, wanted: int
) -> Played:
    """One pass of many rows, cut as `prompt_parts` says, behind a pause in which the rings were filled.

    Raises ValueError where a member reads from a disk that was not measured.
    """
    parts = prompt_parts(stages_of(plan.layers), rows)
    course = _Pipeline(shape, lan, costs, plan, parts, rows / parts, cached, min(wanted, rows / parts), rows)
    course.pass_layers()
    return course.played(course.finish())


class _Run(NamedTuple):
    """What is computed in one go: a unit that is read for it, or all between two of them."""

    unit: Unit | None
    seconds: float
    name: str


class _Pipeline:
    def __init__(
        self,
        shape: ModelShape,
        lan: Lan,
        costs: MemberCosts,
        plan: GroupPlan,
        micro_batches: int,
        rows: float,
        cached: int,
        wanted: float,
        prompt: int = 0,
    ) -> None:
        """rows, wanted: of a micro-batch. prompt: rows of the prompt that all are of; 0: each row is a session's."""
        self._shape, self._lan, self._costs, self._plan = shape, lan, costs, plan
        self._batches, self._rows, self._wanted = micro_batches, rows, wanted
        # In the mean over all rows.
        self._seen = cached + ((prompt or 1) + 1) / 2 if shape.causal else cached + (prompt or rows)
        self._stages = stages_of(plan.layers)
        self._turns = [self._turns_of(stage) for stage in self._stages]
        nodes = len(lan.devices)
        self._at = [0.0] * nodes
        self._out, self._into = [0.0] * nodes, [0.0] * nodes
        self._came: list[float] = []
        self._rings = [self._ring(member, full=prompt > 0) for member in range(lan.members)]
        self._read: dict[Unit, float] = {}
        self._owed = [0.0] * nodes  # Seconds that decoding takes from computing, but for those in which it rested.
        self._clear()

    def pass_layers(self) -> None:
        """One more step of all micro-batches: each begins when its last token is there, and comes to the portal."""
        self._clear()
        first, *others = range(len(self._stages))
        came = []
        portal = self._lan.portal
        for batch in range(self._batches):
            self._head(batch)
            self._compute(portal, batch, 0.0, self._costs.of(portal, "embedding", self._rows), "embedding")
            arrived = self._send(portal, self._stages[first].member, batch, self._at[portal], self._rows, 0)
            came.append(self._turn(first, 0, batch, arrived))
        came = self._further_turns(first, came)
        for number in others:
            stage, before = self._stages[number], self._stages[number - 1]
            last = before.layers[-1]
            came = [
                self._turn(number, 0, batch, self._send(before.member, stage.member, batch, at, self._rows, last))
                for batch, at in enumerate(came)
            ]
            came = self._further_turns(number, came)
        member, last = self._stages[-1].member, self._shape.layers - 1
        self._came = [self._send(member, portal, batch, at, self._wanted, last) for batch, at in enumerate(came)]

    def at_portal(self) -> float:
        """When the last micro-batch's token of the last step is there, were there nothing else to do for the portal."""
        return max(self._came) + self._costs.of(self._lan.portal, "head", self._wanted)

    def finish(self) -> float:
        """The head, with no step behind it; when it is done."""
        for batch in range(self._batches):
            self._head(batch)
        return self._at[self._lan.portal]

    def _head(self, batch: int) -> None:
        if self._came:
            portal = self._lan.portal
            self._compute(portal, batch, self._came[batch], self._costs.of(portal, "head", self._wanted), "head")

    def played(self, seconds: float) -> Played:
        """What came of it: a step takes so long, and the last one is shown."""
        since = min(each.begin for each in self._events if each.kind != "read")
        events = tuple(
            Event(each.node, each.kind, each.begin - since, each.end - since, each.what, each.micro_batch)
            for each in self._events
            if each.end > each.begin
        )
        reads = [self._bytes(member) for member in range(self._lan.members)]
        reading = [sum(sizes) / self._disk(member) if sizes else 0.0 for member, sizes in enumerate(reads)]
        busy, waited = [0.0] * len(self._at), tuple(self._waited)
        for event in events:
            if event.kind == "compute":
                busy[event.node] += event.end - event.begin
        once = sum(event.end - event.begin for event in events if event.micro_batch == 0)
        bound = max(once, *busy, *reading)
        sent = tuple(tuple(row) for row in self._sent)
        return Played(seconds, tuple(busy), tuple(map(sum, reads)), tuple(reading), waited, sent, bound, events)

    def _clear(self) -> None:
        nodes = len(self._at)
        self._events: list[Event] = []
        self._waited = [0.0] * self._lan.members
        self._sent = [[0.0] * nodes for _ in range(self._shape.layers)]

    def _turns_of(self, stage: Stage) -> list[list[_Run]]:
        """What is computed in each turn of a stage."""
        turns = turns_of(self._shape, self._plan, stage) if self._batches > 1 else [streamed_in(self._plan, stage)]
        ends = {turn[-1] for turn in turns[:-1]}
        streamed = {unit for turn in turns for unit in turn}
        name = f"{stage.layers[0]}" if len(stage.layers) == 1 else f"{stage.layers[0]} to {stage.layers[-1]}"
        found: list[list[_Run]] = [[_Run(None, 0.0, name)]]
        for layer in stage.layers:
            for half in HALVES:
                unit = Unit(layer, half)
                seconds = self._costs.half(stage.member, layer, half, self._rows, self._seen)
                if unit in streamed:
                    found[-1] += [_Run(unit, seconds, f"{half} of {layer}"), _Run(None, 0.0, name)]
                else:
                    found[-1][-1] = _Run(None, found[-1][-1].seconds + seconds, name)
                if unit in ends:
                    found.append([_Run(None, 0.0, name)])
        return [[run for run in turn if run.unit is not None or run.seconds] for turn in found]

    def _further_turns(self, number: int, came: list[float]) -> list[float]:
        """When each micro-batch is through with a stage of which all have had their first turn then."""
        for turn in range(1, len(self._turns[number])):
            came = [self._turn(number, turn, batch, at) for batch, at in enumerate(came)]
        return came

    def _turn(self, number: int, turn: int, batch: int, arrived: float) -> float:
        """One turn of a stage with a micro-batch that has arrived; when it is through."""
        member = self._stages[number].member
        self._rest(member, arrived)
        for unit, seconds, name in self._turns[number][turn]:
            if unit is not None:
                if batch == 0:
                    self._begin_read(member, unit)
                self._waited[member] += self._rest(member, self._read[unit])
                self._at[member] += max(self._owed[member], 0.0)
                self._owed[member] = min(self._owed[member], 0.0)
            self._compute(member, batch, 0.0, seconds, name)
            if unit is not None and batch == self._batches - 1:
                self._rings[member].release(self._at[member])
        return self._at[member]

    def _rest(self, member: int, until: float) -> float:
        """A member computes nothing, and decodes meanwhile, up to its ring's bytes ahead; for how long."""
        rested = max(until - self._at[member], 0.0)
        ahead = self._lost(member, self._plan.ring_bytes[member] if self._plan.streams else 0)
        self._owed[member] = max(self._owed[member] - rested, -ahead)
        self._at[member] += rested
        return rested

    def _begin_read(self, member: int, unit: Unit) -> None:
        size = self._size(member, unit)
        begin, end = self._rings[member].read(size, self._at[member])
        self._owed[member] += self._lost(member, size)
        self._read[unit] = end
        self._events.append(Event(member, "read", begin, end, f"{unit.half} of {unit.layer}", -1))

    def _compute(self, node: int, batch: int, ready: float, seconds: float, what: str) -> None:
        begin = max(self._at[node], ready)
        self._at[node] = begin + seconds
        self._events.append(Event(node, "compute", begin, begin + seconds, what, batch))

    def _send(self, source: int, target: int, batch: int, ready: float, rows: float, layer: int) -> float:
        """When rows that were ready then have come."""
        if source == target:
            return ready
        size = rows * self._shape.row_bytes
        begin = max(ready, self._out[source], self._into[target])
        left = begin + size / self._lan.bytes_s[source][target]
        self._out[source] = self._into[target] = left
        self._sent[layer][source] += size
        end = left + self._lan.delay_s[source][target]
        self._events.append(Event(source, "link", begin, end, "", batch))
        return end

    def _ring(self, member: int, full: bool) -> Ring:
        sizes = self._bytes(member)
        if not sizes:
            return Ring(0, 1.0, True)
        room = self._plan.ring_room(self._shape, member)
        for stage, turns in zip(self._stages, self._turns, strict=True):
            if stage.member == member and self._batches > 1:  # Which use together what is held together.
                held = [sum(self._size(member, run.unit) for run in turn if run.unit is not None) for turn in turns]
                room = max(room, *held)
        return Ring(room, self._disk(member), self._plan.prefetch, sizes if full else ())

    def _bytes(self, member: int) -> list[int]:
        units = self._plan.streamed[member] if self._plan.streams else ()
        return [self._size(member, unit) for unit in units]

    def _size(self, member: int, unit: Unit) -> int:
        return self._plan.unit_bytes(self._shape, member, unit)

    def _lost(self, member: int, size: int) -> float:
        return self._lan.devices[member].lost_s(size, self._plan.codes(member))

    def _disk(self, member: int) -> float:
        if not (device := self._lan.devices[member]).read_bytes_s:
            raise ValueError(f"{device.name}: its disk was not measured, so nothing can be read while it is used")
        return device.loaded_bytes_s(self._plan.codes(member))
