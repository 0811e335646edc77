"""Interleaved pipelines on the clocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import msgspec
import pytest
from group_plans import profile, shape, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.costs import MemberCosts
from device_agent.planning.interleaved import play_prompt, play_steps
from device_agent.planning.lan import Lan
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.played import Played
from device_agent.planning.profile import Profile
from device_agent.planning.ring import turns_of
from device_agent.planning.stages import prompt_parts, segments_of, stages_of
from device_agent.planning.task import Work
from device_agent.planning.timeline import ForwardPass, predict
from split_model.offload.form import Decoding
from split_model.offload.units import HALVES, Unit

OF = shape(8, 64, 4, 256, 50, kv_heads=2, gated=True, causal=True, norm_first=True, rotary=True, positions=0)
ATTENTION, MLP = 12288 * 4, 3 * 64 * 256 * 4
MATRIX = 2 * 64 * 256 * 4


def layers(segments: int, members: int = 2) -> tuple[Whole, ...]:
    """All alike."""
    each = OF.layers // members // segments
    return tuple(Whole(member) for _ in range(segments) for member in range(members) for _ in range(each))


def played(plan: GroupPlan, measured: Profile, rows: int = 1) -> Played:
    lan = Lan(measured, plan.members, plan.portal)
    return play_steps(OF, lan, MemberCosts(OF, lan), plan, rows, 20)


def streaming(units: tuple[tuple[Unit, ...], ...], ring: int, segments: int = 1, micro_batches: int = 1) -> GroupPlan:
    plan = GroupPlan(
        "lime", ("a", "b"), "a", layers(segments), streamed=units, ring_bytes=(ring, ring), micro_batches=micro_batches
    )
    plan.check(OF)
    return plan


def some_mlps(segments: int, count: int) -> tuple[tuple[Unit, ...], ...]:
    """As many of each member's, evenly spread."""
    own = [[number for number, layer in enumerate(layers(segments)) if layer.member == member] for member in (0, 1)]
    return tuple(tuple(Unit(of[at * len(of) // count], "mlp") for at in range(count)) for of in own)


@pytest.mark.parametrize("segments", [1, 2, 4])
def test_without_reads_it_is_the_other_timeline(segments: int) -> None:
    """Steps and prompts take what a pipeline without disks takes; of prompts where they are not cut."""
    measured = profile(OF, [1e9, 2e9], 1e7)
    plan = GroupPlan("lime", ("a", "b"), "a", layers(segments))
    assert played(plan, measured).seconds == pytest.approx(
        predict(OF, measured, plan, ForwardPass(1, 20)).seconds, rel=1e-6
    )
    lan = Lan(measured, plan.members, plan.portal)
    prompt = play_prompt(OF, lan, MemberCosts(OF, lan), plan, 12, 0, 1)
    assert prompt.seconds == pytest.approx(predict(OF, measured, plan, ForwardPass(12)).seconds, rel=1e-6)


def test_a_plain_pipeline_waits_for_what_an_interleaved_one_hides() -> None:
    """Figure 3 of the paper: what one device reads in the midst of its only stage nobody else computes beside; in four
    stages the same reads are hidden by the others' computing, with the same ring."""
    measured = profile(OF, [2e7, 2e7], 1e8, disks=1e8)
    plain = played(streaming(some_mlps(1, 4), MLP), measured)
    interleaved = played(streaming(some_mlps(4, 4), MLP, 4), measured)
    assert plain.read_bytes == interleaved.read_bytes == (4 * MLP, 4 * MLP)
    assert interleaved.hidden > 0.99 and interleaved.seconds == pytest.approx(interleaved.bound, rel=0.01)
    assert plain.seconds > 1.05 * interleaved.seconds


def test_a_slow_disk_bounds_a_step() -> None:
    """Where reading takes longest a step takes as long as that, with a ring of two units."""
    found = played(streaming(some_mlps(2, 2), 2 * MLP, 2), profile(OF, [1e9, 1e9], 1e8, disks=1e6))
    assert found.seconds == pytest.approx(2 * MLP / 1e6, rel=1e-3)
    assert found.bound == pytest.approx(found.seconds, rel=1e-3)


def test_without_reading_ahead_every_read_is_waited_for() -> None:
    """As the plain baseline has it: all that is read adds to the step."""
    ahead = streaming(some_mlps(2, 2), 2 * MLP, 2)
    measured = profile(OF, [1e9, 1e9], 1e8, disks=1e7)
    found = played(replace(ahead, prefetch=False), measured)
    kept = played(GroupPlan("lime", ("a", "b"), "a", layers(2)), measured)
    assert found.hidden == pytest.approx(0.0, abs=1e-6)
    assert found.seconds == pytest.approx(kept.seconds + 4 * MLP / 1e7, rel=1e-6)
    assert played(ahead, measured).seconds < found.seconds


def test_micro_batches_share_what_is_read() -> None:
    """Where the units of a stage fit together, and, by turns, where they do not: nothing is read twice in a step."""
    units = tuple(
        tuple(Unit(number, half) for number in own for half in HALVES) for own in ((0, 1, 4, 5), (2, 3, 6, 7))
    )
    together = streaming(units, 2 * (ATTENTION + MLP) + MATRIX, 2, micro_batches=2)
    by_turns = streaming(units, MLP, 2, micro_batches=2)
    stage = stages_of(together.layers)[0]
    assert len(turns_of(OF, together, stage)) == 1 and len(turns_of(OF, by_turns, stage)) == 4
    measured = profile(OF, [1e9, 1e9], 1e8, disks=1e7)
    for plan in (together, by_turns):
        found = played(plan, measured)
        reads = [event.what for event in found.events if event.kind == "read" and event.node == 0]
        assert len(reads) == len(set(reads)) == 8
    assert played(together, measured).seconds <= played(by_turns, measured).seconds * (1 + 1e-6)


@st.composite
def plans(draw: st.DrawFn) -> tuple[GroupPlan, Profile]:
    """Of any layers, units and rings that are allowed."""
    members = draw(st.integers(1, 3))
    owners = draw(st.lists(st.integers(0, members - 1), min_size=OF.layers, max_size=OF.layers))
    units = tuple(
        tuple(Unit(n, half) for n, own in enumerate(owners) for half in HALVES if own == member and draw(st.booleans()))
        for member in range(members)
    )
    rings = tuple(draw(st.integers(MLP, 10 * MLP)) for _ in range(members))
    names = tuple("abc"[:members])
    plan = GroupPlan(
        "lime",
        names,
        draw(st.sampled_from(names)),
        tuple(map(Whole, owners)),
        streamed=units,
        ring_bytes=rings,
        prefetch=draw(st.booleans()),
        micro_batches=draw(st.integers(1, 3)),
    )
    speeds = draw(st.lists(st.floats(1e7, 1e9), min_size=members, max_size=members))
    disks = draw(st.lists(st.floats(1e6, 1e9), min_size=members, max_size=members))
    return plan, profile(OF, speeds, draw(st.floats(1e5, 1e8)), disks=disks)


@given(plans())
@settings(max_examples=80, deadline=None)
def test_every_plan_comes_to_an_end(found: tuple[GroupPlan, Profile]) -> None:
    """No order of reads waits for itself; no step takes less than its bound; nobody does two things at once; and what
    is read is read once a step."""
    plan, measured = found
    plan.check(OF)
    steps = played(plan, measured)
    assert steps.seconds >= steps.bound * (1 - 1e-3)
    assert 0 <= steps.hidden <= 1
    for kind in ("compute", "read"):
        events = sorted((e.node, e.begin, e.end) for e in steps.events if e.kind == kind)
        for _, of in groupby(events, key=lambda event: event[0]):
            ends = 0.0
            for at, (_, begin, end) in enumerate(of):
                assert at == 0 or begin >= ends - 1e-9
                ends = end
    for member, units in enumerate(plan.streamed):
        assert steps.read_bytes[member] == sum(plan.unit_bytes(OF, member, unit) for unit in units)


@given(plans())
@settings(max_examples=30, deadline=None)
def test_reading_ahead_is_never_slower(found: tuple[GroupPlan, Profile]) -> None:
    """And neither is a larger ring, on the same plan with one micro-batch."""
    plan, measured = replace(found[0], micro_batches=1), found[1]
    ahead = played(replace(plan, prefetch=True), measured).seconds
    assert ahead <= played(replace(plan, prefetch=False), measured).seconds * (1 + 1e-3)


def test_stages() -> None:
    """Runs of a member's layers, and the rounds that they make."""
    found = stages_of(tuple(map(Whole, (0, 0, 1, 0, 1, 1))))
    assert [(stage.member, list(stage.layers)) for stage in found] == [(0, [0, 1]), (1, [2]), (0, [3]), (1, [4, 5])]
    assert segments_of(found) == 2
    assert prompt_parts(found, 100) == 2 and prompt_parts(found, 20) == 1 and prompt_parts(found[:2], 100) == 1


def test_a_disk_that_nobody_measured_is_not_read() -> None:
    """It is refused, by the device's name."""
    plan = streaming(some_mlps(2, 1), MLP, 2)
    with pytest.raises(ValueError, match="a: its disk was not measured"):
        task(OF, profile(OF, [1e9, 1e9], 1e7), Work(10, 5)).step(plan)


@pytest.mark.parametrize(
    ("units", "ring", "says"),
    [
        ((Unit(2, "mlp"),), MLP, "of which it has nothing"),
        ((Unit(1, "mlp"), Unit(0, "mlp")), MLP, "not in the order of use"),
        ((Unit(0, "mlp"),), MLP - 1, "for units of"),
    ],
)
def test_what_cannot_be_streamed_is_refused(units: tuple[Unit, ...], ring: int, says: str) -> None:
    """Another member's units, another order, more than the ring has."""
    plan = GroupPlan("lime", ("a", "b"), "a", layers(2), streamed=(units, ()), ring_bytes=(ring, 0))
    with pytest.raises(ValueError, match=says):
        plan.check(OF)


def test_streamed_units_take_the_ring_only() -> None:
    """Of memory: all weights without them, and the buffers."""
    asked = task(OF, profile(OF, [1e9, 1e9], 1e7, disks=1e6), Work(10, 5))
    kept = asked.held(GroupPlan("lime", ("a", "b"), "a", layers(2)))["b"]
    found = asked.held(streaming(some_mlps(2, 2), MLP, 2))["b"]
    assert kept.layers - found.layers == 2 * MLP and found.ring == MLP and kept.ring == 0
    assert found.total == kept.total - MLP


@pytest.mark.parametrize(
    ("disk", "decoded", "lost", "seconds"),
    [
        (1e6, 1e9, 0.0, 0.7),  # As much sooner as there are fewer bytes.
        (1e6, 1.25e6, 0.0, 0.8),  # Decoding takes longer than reading.
        (1e6, 2.5e6, 1.0, 0.7),  # Without a spare core, but it waits for its disk anyway.
    ],
)
def test_coded_reads_take_the_longer_of_reading_and_decoding(
    disk: float, decoded: float, lost: float, seconds: float
) -> None:
    """Where disks bound a step, beside the step with plain reads, and to what computing takes at both ends."""
    plan = streaming(some_mlps(1, 3), 2 * MLP)
    measured = profile(OF, [1e12, 1e12], 1e9)
    devices = tuple(
        msgspec.structs.replace(each, read_bytes_s=disk, decoding=Decoding(0.7, decoded, lost))
        for each in measured.devices
    )
    measured = msgspec.structs.replace(measured, devices=devices)
    plain, coded = (played(each, measured) for each in (plan, replace(plan, coded=(True, True))))
    assert coded.seconds / plain.seconds == pytest.approx(seconds, rel=0.02)
    assert coded.hidden == pytest.approx(plain.hidden, abs=0.02)


def test_decoding_takes_from_computing_where_no_core_is_spare() -> None:
    """A step that computes all the time takes longer by what its decoding takes; with a spare core it does not."""
    plan = replace(streaming(some_mlps(1, 3), 2 * MLP), coded=(True, True))
    alone = profile(OF, [1e8, 1e8], 1e9)
    found = []
    for lost in (0.0, 1.0):
        devices = tuple(
            msgspec.structs.replace(each, read_bytes_s=1e12, decoding=Decoding(0.7, 1e9, lost))
            for each in alone.devices
        )
        found.append(played(plan, msgspec.structs.replace(alone, devices=devices)).seconds)
    assert found[1] - found[0] == pytest.approx(2 * 3 * MLP / 1e9, rel=0.35)
