"""What is streamed as keys and values take the memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from group_plans import profile, shape, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.lime import plan_lime, plan_reserved
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.offloaded import plan_edgeshard_offloaded, plan_pipeline_offloaded
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.task import Task, Work
from device_agent.planning.thresholds import (
    GROWTH,
    SPARE,
    Thresholds,
    cache_room,
    counted,
    easy_tokens,
    grown,
    most_tokens,
    thresholds_of,
    token_bytes,
    with_relief,
)

OF = shape(12, 64, 4, 256, 50, kv_heads=2, gated=True, causal=True, norm_first=True, rotary=True, positions=0)
LAYER = 4 * OF.layer_elements(0, range(2), range(256))
ROOM = 60_000


def short(count: int = 2, layers: float = 4.0) -> Task:
    """Devices with memory for so many layers each."""
    measured = profile(OF, [3e7] * count, 1e8, memory=layers * LAYER + ROOM, disks=2e8)
    return task(OF, measured, Work(16, 16))


def test_nobody_counts_more_than_it_holds() -> None:
    """A session has memory for what it is counted as, until its limit; and for nothing before its first row."""
    assert [counted(0, 100), counted(1, 100), counted(5, 1000), counted(990, 1000)] == [0, 100, 5 + SPARE, 1000]
    assert SPARE >= GROWTH


@given(st.floats(3, 5), st.integers(33, 400))
@settings(max_examples=20, deadline=None)
def test_nobody_passes_its_memory_up_to_the_last_threshold(layers: float, tokens: int) -> None:
    """With as many tokens as come before each threshold what is held then fits; thresholds rise; one token more would
    not fit without the next step; and each streams what the one before does and one unit more."""
    asked = short(3, layers)
    plan = with_relief(asked, plan_lime(asked), tokens)
    asked.fitting(plan)
    for member in range(3):
        count = sum(layer == Whole(member) for layer in plan.layers)
        token, found = token_bytes(OF, count), thresholds_of(OF, plan, member)
        levels = [0, *(step.tokens for step in found.steps)]
        assert levels == sorted(levels)
        for level, step in enumerate(found.steps):
            assert found.level(step.tokens - 1) <= level < found.level(step.tokens)
        for level in range(len(found.steps) + 1):
            held = found.relieved(plan, member, level)
            held.check(OF)
            room = cache_room(asked, replace(held, cache_bytes=()), member)
            most = found.steps[level].tokens - 1 if level < len(found.steps) else found.most
            assert most * token <= room < (most + 1) * token
            assert len(held.streamed[member]) == len(plan.streamed[member]) + level
            assert set(plan.streamed[member]) <= set(held.streamed[member])
        own = {number for number, layer in enumerate(plan.layers) if layer == Whole(member)}
        last = found.relieved(plan, member, len(found.steps)).streamed[member]
        assert not plan.ring_bytes[member] or {unit.layer for unit in last if unit.half == "attention"} == own


def test_without_a_bound_nothing_changes() -> None:
    """Plans that say nothing of keys and values, and members of other forms."""
    plan = plan_lime(short())
    assert not plan.cache_bytes and thresholds_of(OF, plan, 0) == Thresholds()
    assert most_tokens(OF, plan) == sys.maxsize


@pytest.mark.parametrize(("room", "memory"), [(200, 4.0), (800, 9.0)])
def test_long_sessions_need_no_memory_from_the_beginning(room: int, memory: float) -> None:
    """Where a session may become long there is a plan that is about as good, short and long, as with memory for all of
    it; what that reads from the beginning, this one may read later."""
    asked = short(2, memory)
    long = replace(asked, work=Work(16, 16, room=room))
    plan = plan_lime(long)
    assert plan.cache_bytes and most_tokens(OF, plan) >= room
    reserved, then = plan_reserved(long), grown(OF, plan, room)
    assert long.seconds(plan) + long.seconds(then) <= 2 * long.seconds(reserved) * 1.05
    assert reserved.streams and then.streams and long.seconds(plan) <= 1.05 * long.seconds(reserved)


def test_who_keeps_all_at_first_gets_a_ring_where_it_may_need_one() -> None:
    """And only there: memory for no more than the work's tokens, or for all that are asked."""
    asked = replace(short(2, 9.0), work=Work(16, 16, room=100))
    plan = plan_lime(replace(asked, work=Work(16, 16)))
    assert not plan.streams
    little, ample = with_relief(asked, plan, 900), with_relief(asked, plan, 50)
    assert any(little.ring_bytes) and not any(ample.ring_bytes) and most_tokens(OF, ample) >= 50
    assert most_tokens(OF, little) >= 900 and easy_tokens(OF, little) >= 100
    assert not grown(OF, little, 100).streams and grown(OF, little, 900).streams


def test_long_sessions_cost_short_ones_little() -> None:
    """Devices with little more memory than the weights, and sessions that may fill a third of it: while they are short
    all takes little more than half as long as where memory is kept for them, once they are long half as much more."""
    memory = [8 * LAYER, 6 * LAYER]
    asked = task(OF, profile(OF, [1e9, 1e9], 1e8, memory=memory, disks=3e7), Work(16, 16, room=400))
    plan, reserved = plan_lime(asked), plan_reserved(asked)
    assert reserved.streams and asked.seconds(plan) <= 0.6 * asked.seconds(reserved)
    assert asked.seconds(grown(OF, plan, 400)) <= 1.5 * asked.seconds(reserved)


def test_what_is_too_long_for_any_relief_is_said() -> None:
    """As without it: who lacks how much."""
    with pytest.raises(DoesNotFit, match="lacks"):
        plan_lime(replace(short(2, 4.0), work=Work(16, 16, room=10**6)))


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
