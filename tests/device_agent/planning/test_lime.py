"""LIME's plans: they fit, they are good on the timeline, and where nothing must be streamed nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from group_plans import GPT2, TINY_CAUSAL, profile, shape, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.lime import plan_lime
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import plan_for
from device_agent.planning.offloaded import plan_pipeline_offloaded
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.stages import segments_of, stages_of
from device_agent.planning.task import Work
from split_model.offload.units import HALVES, Unit

OF = shape(12, 64, 4, 256, 50, kv_heads=2, gated=True, causal=True, norm_first=True, rotary=True, positions=0)
LAYER = 4 * OF.layer_elements(0, range(2), range(256))


@pytest.mark.parametrize("of", [TINY_CAUSAL, GPT2], ids=["tiny", "gpt2"])
def test_what_fits_is_a_plain_pipeline(of: ModelShape) -> None:
    """Nothing is streamed, and nobody comes twice."""
    found = plan_lime(task(of, profile(of, [1e9, 2e9], 1e7, disks=1e9), Work(20, 5)))
    assert not found.streams and not found.ring_bytes and segments_of(stages_of(found.layers)) == 1


@given(
    st.lists(st.tuples(st.floats(1e7, 1e9), st.floats(2, 7), st.floats(1e6, 1e8)), min_size=1, max_size=4),
    st.floats(1e5, 1e8),
    st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_a_plan_fits_or_it_is_said_who_lacks_how_much(
    devices: list[tuple[float, float, float]], bytes_s: float, sessions: int
) -> None:
    """Whatever devices there are, of which each has memory for two to seven layers."""
    speeds, rooms, disks = zip(*devices, strict=True)
    memory = [room * LAYER + 100_000 for room in rooms]
    asked = task(OF, profile(OF, speeds, bytes_s, memory=memory, disks=disks), Work(16, 8, sessions=sessions))
    try:
        found = plan_lime(asked)
    except DoesNotFit as error:
        assert error.lacks and all(lack.needed > lack.budget for lack in error.lacks)
        return
    found.check(OF)
    assert not asked.lacks(found)
    assert found.streams or segments_of(stages_of(found.layers)) == 1


def test_segments_are_faster_than_one_where_they_hide_the_reads() -> None:
    """Four devices of memory for two layers and a half each, with twelve layers, and disks that are read in about the
    time of a step: a step takes at most two thirds of what the plain pipeline with offloading takes."""
    memory = [2.45 * LAYER + 60_000] + [2.45 * LAYER + 30_000] * 3
    asked = task(OF, profile(OF, [3e7] * 4, 1e8, memory=memory, disks=3e7), Work(2, 64))
    found = plan_lime(asked)
    assert segments_of(stages_of(found.layers)) > 1 and found.streams
    assert asked.step(found).seconds <= asked.step(plan_pipeline_offloaded(asked)).seconds / 1.5


def test_a_plan_is_no_worse_than_any_of_a_small_model() -> None:
    """Beside all ways to hand out four layers to two devices, to stream any units of them, with several rings: within a
    tenth of the fastest."""
    of = replace(OF, layers=4)
    measured = profile(of, [3e7, 5e7], 1e7, memory=[2.4 * LAYER, 1.8 * LAYER], disks=[5e7, 1e8])
    asked = task(of, measured, Work(8, 64))
    found = asked.step(plan_lime(asked)).seconds
    best = min(asked.step(plan).seconds for plan in _every(of) if not asked.lacks(plan))
    assert found <= 1.1 * best


def _every(of: ModelShape) -> Iterator[GroupPlan]:
    """All plans of four layers at two devices that stream something."""
    units = [Unit(number, half) for number in range(4) for half in HALVES]
    sizes = GroupPlan("lime", ("a",), "a", (Whole(0),) * 4)
    attention, mlp = (sizes.unit_bytes(of, 0, Unit(0, half)) for half in HALVES)
    for owners in product((0, 1), repeat=4):
        if len(set(owners)) < 2:
            continue
        for chosen in product((False, True), repeat=8):
            streamed = tuple(
                tuple(unit for unit, taken in zip(units, chosen, strict=True) if taken and owners[unit.layer] == member)
                for member in (0, 1)
            )
            if not any(streamed):
                continue
            for rings in product((attention, mlp, 2 * mlp), repeat=2):
                plan = GroupPlan(
                    "lime", ("a", "b"), "a", tuple(map(Whole, owners)), streamed=streamed, ring_bytes=rings
                )
                try:
                    plan.check(of)
                except ValueError:
                    continue
                yield plan


def test_who_cannot_read_cannot_stream() -> None:
    """With disks that were not measured a model that does not fit is refused, by the mode's name and the devices'."""
    asked = task(OF, profile(OF, [1e8] * 2, 1e7, memory=5 * LAYER), Work(16, 8))
    with pytest.raises(DoesNotFit, match=r"^lime does not fit: (a|b) lacks"):
        plan_for("lime", asked)


def test_a_prompt_alone_is_planned_too() -> None:
    """One-shot work, of which no keys and values are kept."""
    asked = task(OF, profile(OF, [1e8] * 2, 1e7, memory=4 * LAYER, disks=1e8), Work(16))
    assert plan_lime(asked).streams


@pytest.mark.parametrize(("flops_s", "overhead_s"), [(1e7, 0.0), (1e12, 1e-3)], ids=["rows cost", "calls cost"])
@pytest.mark.parametrize("disk", [1e7, 1e9])
def test_steps_of_many_sessions_are_cut_as_is_best(flops_s: float, overhead_s: float, disk: float) -> None:
    """Planned for one session: no other number of micro-batches is faster for a session of each member, and one
    session's prompt and steps take what they take uncut. A plain pipeline is not cut."""
    memory = 2.5 * LAYER + 100_000
    measured = profile(OF, [flops_s] * 4, 1e7, memory=memory, overhead_s=overhead_s, disks=disk)
    asked = task(OF, measured, Work(16, 8))
    found = plan_lime(asked)
    many = replace(asked, work=replace(asked.work, sessions=4))
    assert found.streams
    every = [many.step(replace(found, micro_batches=count)).seconds for count in range(1, 5)]
    assert many.step(found).seconds == min(every)
    assert asked.seconds(found) == asked.seconds(replace(found, micro_batches=1))
    plain = plan_lime(replace(asked, profile=profile(OF, [flops_s] * 4, 1e7, overhead_s=overhead_s)))
    assert plain.micro_batches == 1 and not plain.streams
