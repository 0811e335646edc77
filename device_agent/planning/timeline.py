"""What a plan takes: seconds of one forward, and the bytes that each member sends for it. Pure.

Every member has a clock; a product begins when its rows have come, an exchange when its sender has them. So barriers,
slow members, uneven shares and what overlaps need no formulas of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from device_agent.planning.by_heads import run_by_heads
from device_agent.planning.by_rows import run_by_rows
from device_agent.planning.costs import MemberCosts
from device_agent.planning.course import Course
from device_agent.planning.holding import HeldRows
from device_agent.planning.interleaved import play_prompt, play_steps
from device_agent.planning.lan import Lan
from device_agent.planning.lending import run_lent
from device_agent.planning.plan import ByRows, GroupPlan, Layer, Lent, Whole, as_run
from device_agent.planning.profile import Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.streamed_shards import play_shards


@dataclass(frozen=True)
class ForwardPass:
    """Rows that pass the whole model at once.

    Attributes:
        rows: how many. Where an encoder reads the prompt: its rows, or with `cached` those of a step of its decoder.
        cached: positions before them, whose keys and values are there.
        wanted: how many of the last rows the portal needs; the head computes only these. A decoder that attends to the
            encoder's rows writes so many at once.
    """

    rows: int
    cached: int = 0
    wanted: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.wanted <= self.rows or self.cached < 0:
            raise ValueError(f"{self.wanted} of {self.rows} rows behind {self.cached} are no forward")


@dataclass(frozen=True)
class Prediction:
    """What a forward takes.

    Attributes:
        seconds: from the portal's first token to its last logit.
        busy: seconds that each node computes: the members, then the portal where it is none of them.
        sent: bytes that each node sends, by layer; those of the last layer include what goes to the portal.
    """

    seconds: float
    busy: tuple[float, ...]
    sent: tuple[tuple[float, ...], ...]


def predict(shape: ModelShape, profile: Profile, plan: GroupPlan, forward: ForwardPass) -> Prediction:
    """Plays one forward. Raises ValueError where the plan does not fit the shape or a device was not measured."""
    plan.check(shape)
    if forward.cached and any(isinstance(layer, ByRows) and any(layer.reordered) for layer in plan.layers):
        raise ValueError("Eq. 8 leaves no keys and values, so nothing can be computed behind it")
    return play(shape, Lan(profile, plan.members, plan.portal), plan, forward)


def play(
    shape: ModelShape, lan: Lan, plan: GroupPlan, forward: ForwardPass, costs: MemberCosts | None = None
) -> Prediction:
    """As `predict`, of a plan that was checked; `costs` of the same shape and links may be used again."""
    if plan.streams and shape.cross_layers:
        return _of_halves(shape, lan, plan, forward, costs or MemberCosts(shape, lan))
    if plan.streams or plan.micro_batches > 1:
        return _streamed(shape, lan, plan, forward, costs or MemberCosts(shape, lan))
    course = Course(lan, shape.layers)
    on = HeldRows(shape, lan, course, costs or MemberCosts(shape, lan), forward.rows, forward.cached)
    last, turn = shape.layers - 1, shape.layers - shape.cross_layers
    # What an encoder has read is read: steps are the decoder's.
    number = turn if forward.cached and shape.cross_layers else 0
    wanted = forward.rows if forward.cached else forward.wanted
    steps = [
        as_run(layer, shape.passing(at, forward.rows, wanted), forward.cached) for at, layer in enumerate(plan.layers)
    ]
    on.begin()
    past: list[tuple[Course, tuple[int, ...] | int | None]] = []
    while number <= last:
        if number == turn and not forward.cached:
            course.layer = max(number - 1, 0)
            on.turn(forward.wanted)
        past.append((course.copy(), on.held))
        _run(on, number, steps[number], forward.wanted if number == last else on.rows)
        alike = _alike(shape, steps, number)
        number += 1
        number += _skipped(course, on, past[-lan.members :], alike)
        if not alike:
            past.clear()
    course.layer = last
    on.end(forward.wanted)
    return Prediction(course.at[lan.portal], tuple(course.busy), tuple(tuple(row) for row in course.sent))


def _streamed(shape: ModelShape, lan: Lan, plan: GroupPlan, forward: ForwardPass, costs: MemberCosts) -> Prediction:
    """Where members read what they use, what a forward takes depends on the one before it: of several one behind the
    other, each with all rows wanted, one; of a prompt the first."""
    if not isinstance(plan.layers[0], Whole):
        return Prediction(*play_shards(shape, lan, costs, plan, forward.rows, forward.cached, forward.wanted))
    if forward.cached and forward.wanted == forward.rows:
        cut = replace(plan, micro_batches=min(plan.micro_batches, forward.rows))  # Each has a session at least.
        played = play_steps(shape, lan, costs, cut, ceil(forward.rows / cut.micro_batches), forward.cached)
    else:
        played = play_prompt(shape, lan, costs, plan, forward.rows, forward.cached, forward.wanted)
    return Prediction(played.seconds, played.busy, played.sent)


def _of_halves(shape: ModelShape, lan: Lan, plan: GroupPlan, forward: ForwardPass, costs: MemberCosts) -> Prediction:
    """Of an encoder and its decoder: what it takes without reading, and what each member waits for its disk. In its
    ring it has some units ahead; the others are read while it computes. Keys and values of a text are made with units
    that are read for them, so the first forward reads all."""
    played = play(shape, lan, replace(plan, streamed=(), ring_bytes=(), coded=()), forward, costs)
    turn = shape.layers - shape.cross_layers if forward.cached else 0
    late, longest = 0.0, 0.0
    for member, units in enumerate(plan.streamed):
        read = sum(plan.unit_bytes(shape, member, unit) for unit in units if unit.layer >= turn)
        if read:
            disk = lan.devices[member].loaded_bytes_s(plan.codes(member))
            late += max((read - plan.ring_bytes[member]) / disk - played.busy[member], 0.0)
            longest = max(longest, read / disk)
    return replace(played, seconds=max(played.seconds + late, longest))


def _skipped(
    course: Course, on: HeldRows, past: Sequence[tuple[Course, tuple[int, ...] | int | None]], alike: int
) -> int:
    """How many of the layers to come need not be played: they repeat what the last ones did, up to a ring's round.

    past: before each of the last layers that were alike.
    """
    for layers, (before, held) in enumerate(reversed(past), 1):
        times = alike // layers
        if times and on.held == held and course.repeat(before, layers, times):
            return times * layers
    return 0


def _run(on: HeldRows, number: int, layer: Layer, wanted: int) -> None:
    on.course.layer = max(number - 1, 0)
    if not isinstance(layer, ByRows):
        on.early = None
    if isinstance(layer, Whole):
        on.to_one(layer.member, on.rows)
        on.compute_at(layer.member, on.costs.layer(layer.member, number, on.rows, on.seen, on.read, on.source))
    elif isinstance(layer, ByRows):
        run_by_rows(on, number, layer, wanted)
    elif isinstance(layer, Lent):
        run_lent(on, number, layer, wanted)
    else:
        run_by_heads(on, number, layer)


def _alike(shape: ModelShape, steps: Sequence[Layer], number: int) -> int:
    """How many layers behind this one are as it is, without the last of the model."""
    this = steps[number], shape.attentions(number)
    after = number + 1
    while after < len(steps) - 1 and (steps[after], shape.attentions(after)) == this:
        after += 1
    return after - number - 1
