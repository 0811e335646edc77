"""What is streamed as keys and values take the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from group_plans import profile, shape, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.lime import plan_lime
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.offloaded import plan_edgeshard_offloaded, plan_pipeline_offloaded
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.task import Task, Work
from device_agent.planning.thresholds import relief_of, room_for_tokens

OF = shape(12, 64, 4, 256, 50, kv_heads=2, gated=True, causal=True, norm_first=True, rotary=True, positions=0)
LAYER = 4 * OF.layer_elements(0, range(2), range(256))
ROOM = 60_000


def short(count: int = 2, layers: float = 4.0) -> Task:
    """Devices with memory for so many layers each."""
    measured = profile(OF, [3e7] * count, 1e8, memory=layers * LAYER + ROOM, disks=2e8)
    return task(OF, measured, Work(16, 16))


@given(st.floats(3, 5), st.booleans())
@settings(max_examples=20, deadline=None)
def test_nobody_passes_its_memory_up_to_the_last_threshold(layers: float, growing: bool) -> None:
    """With as many tokens as come before each threshold what is held then fits; thresholds rise; and one token more
    would not fit without the next step."""
    asked = short(3, layers)
    plan = plan_lime(asked)
    for member, steps in enumerate(relief_of(asked, plan, growing)):
        held = plan
        room, token = room_for_tokens(asked, plan, member)
        assert room >= asked.work.positions * token
        for step in steps:
            room, token = room_for_tokens(asked, held, member)
            assert (step.tokens - 1) * token <= room < step.tokens * token
            streamed = [*plan.streamed]
            streamed[member] = step.streamed
            held = replace(plan, streamed=tuple(streamed))
            held.check(OF)
            assert room_for_tokens(asked, held, member)[0] > room
        tokens = [step.tokens for step in steps]
        assert tokens == sorted(tokens)


def test_growing_steps_hold_what_came_before() -> None:
    """So that nothing is read to be kept again, and in the end all is streamed that the ring can take."""
    asked = short()
    plan = plan_lime(asked)
    for member, steps in enumerate(relief_of(asked, plan)):
        before = set(plan.streamed[member])
        for step in steps:
            assert before < set(step.streamed)
            before = set(step.streamed)
        own = [number for number, layer in enumerate(plan.layers) if layer == Whole(member)]
        assert {unit.layer for unit in before if unit.half == "attention"} == set(own)


def test_replacing_steps_are_the_least() -> None:
    """Eq. 6: an MLP alone may take the place of two attentions; there are more steps, each of fewer bytes."""
    asked = short()
    plan = plan_lime(asked)
    grown, least = relief_of(asked, plan)[0], relief_of(asked, plan, growing=False)[0]
    assert len(least) >= len(grown)
    assert {step.tokens for step in grown} <= {step.tokens for step in least}


@pytest.mark.parametrize("planner", [plan_pipeline_offloaded, plan_edgeshard_offloaded])
def test_baselines_read_what_does_not_fit(planner: Callable[..., GroupPlan]) -> None:
    """One segment, a ring of one unit; without reading ahead no faster; and slower than LIME for the same work."""
    asked = short(4, 2.6)
    plan = planner(asked)
    plan.check(OF)
    assert plan.streams and not asked.lacks(plan)
    assert {unit.layer for units in plan.streamed for unit in units} <= set(range(12))
    late = planner(asked, prefetch=False)
    assert asked.step(late).seconds >= asked.step(plan).seconds
    assert asked.seconds(plan) >= asked.seconds(plan_lime(asked))


def test_baselines_say_who_lacks_how_much() -> None:
    """Where keys and values alone are too much."""
    with pytest.raises(DoesNotFit, match=r"pipeline does not fit: (a|b) lacks"):
        plan_pipeline_offloaded(short(2, 0.2))
