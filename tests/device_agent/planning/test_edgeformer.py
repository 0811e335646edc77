"""EdgeFormer's exact planner: what it lends, against all ways to, and what it chooses among."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_plans import GPT2, TINY, TINY_CAUSAL, layer_of, profile, shape, task, tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.baselines import plan_by_efficiency, plan_local
from device_agent.planning.block_ways import block_ways
from device_agent.planning.describe import description
from device_agent.planning.edgeformer import lent_plan, plan_blocks, plan_edgeformer
from device_agent.planning.edgeshard import layers_room, plan_edgeshard
from device_agent.planning.facts import plan_facts
from device_agent.planning.forms import Lent, Whole
from device_agent.planning.lending_search import WAYS, Lending, LendingSearch
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import plan_for
from device_agent.planning.plan import GroupPlan
from device_agent.planning.shares import all_ways
from device_agent.planning.task import Task, Work

SMALL = shape(2, 32, 4, 6, 50, positions=64, causal=True, norm_first=True)


@given(
    st.lists(st.floats(1e5, 1e7), min_size=2, max_size=3),
    st.floats(1e4, 1e7),
    st.floats(1e-5, 1e-3),
    st.sampled_from([Work(60, 0, 60), Work(12, 30, 12), Work(200, 5, 200)]),
    st.sampled_from([way for way in WAYS if not (way.projections and way.steps_apart)]),
)
@settings(max_examples=20, deadline=None)
def test_no_way_to_lend_is_faster(speeds: list[float], bytes_s: float, rtt_s: float, work: Work, way: Lending) -> None:
    """Of all numbers of groups and columns, played as a whole plan; few units, so all were looked at. All rows are
    wanted: of the last layer fewer would be computed, and what is best is best for the others."""
    asked = task(SMALL, profile(SMALL, speeds, bytes_s, rtt_s=rtt_s), work)
    best = LendingSearch(asked).best(0, way)
    count = len(speeds)

    def seconds(layer: Lent | Whole) -> float:
        return asked.seconds(GroupPlan("test", asked.members, "a", (layer,) * SMALL.layers))

    groups = list(all_ways(4, count)) if way.heads else [(4,) + (0,) * (count - 1)]
    columns = list(all_ways(6, count)) if way.columns else [(6,) + (0,) * (count - 1)]
    # Heads and columns do not know of one another, so each is tried with the other as it was found.
    found = best.layer if isinstance(best.layer, Lent) else Lent(0, groups[0], columns[0])
    few = int(way.steps_apart)
    others: list[Lent | Whole] = [Lent(0, each, found.columns, way.projections, few) for each in groups]
    others += [Lent(0, found.groups, each, way.projections, few) for each in columns]
    others.append(Whole(0))
    assert seconds(best.layer) <= min(seconds(other) for other in others) * (1 + 1e-9)


@given(tasks(layers=2, members=2, rows=(3, 60), new=30, least_memory=60_000))
@settings(max_examples=4, deadline=None)
def test_no_other_form_is_faster(asked: Task) -> None:
    """Of the group, or one device alone; where any of them fits, this does."""
    found = {}
    for mode in ("edgeformer", "tensor", "galaxy", "voltage", "sequence", "pipeline"):
        try:
            found[mode] = asked.seconds(plan_for(mode, asked))
        except DoesNotFit:
            continue
    if found:
        assert found["edgeformer"] <= min(found.values()) * (1 + 1e-9)


@given(tasks(layers=4, members=3, rows=(3, 60), new=5, least_memory=60_000))
@settings(max_examples=15, deadline=None)
def test_the_exact_blocks_are_never_slower_than_the_papers(asked: Task) -> None:
    """Of a profile, hops counted; each way has all blocks, and none more than there is room for. Where there is none
    for all together there is no way."""
    ways = block_ways(asked)
    if asked.shape.cross_layers:  # Not all blocks are alike.
        assert not ways
        return
    rooms = {name: layers_room(asked, name, first=True) for name in asked.members}
    assert bool(ways) == (sum(rooms.values()) >= asked.shape.layers)
    for way in ways:
        assert sum(count for _, count in way.runs) == asked.shape.layers
        assert all(0 < count <= rooms[name] for name, count in way.runs)
        assert ways[-1].seconds <= way.seconds * (1 + 1e-9)


def test_a_plan_says_how_the_paper_would_allocate_blocks() -> None:
    """A small device first, by f / s, though it is slow; and what that costs beside the least sum and the exact way, in
    words and as data."""
    of = layer_of(GPT2, 4)
    measured = profile(of, [4e9, 2.5e9], 1e7, memory=[5e8, 3.5e7])
    asked = task(of, measured, Work(100, 0, 100))
    plan = plan_edgeformer(asked)
    published, least, exact = block_ways(asked)
    assert published.runs == (("b", 1), ("a", 3)) and least.runs == exact.runs == (("a", 4),)
    assert published.seconds > 1.2 * exact.seconds
    text, facts = description(asked, plan), plan_facts(asked, plan)
    assert "blocks by Eq. 2 as published, most f / s first: 1 at b, 3 at a: " in text
    assert "blocks by all ways, hops counted: 4 at a: " in text
    assert [each["work_s"] for each in facts["blocks"]] == [way.seconds for way in (published, least, exact)]


def test_attention_is_lent_where_processors_are_slow_and_texts_long() -> None:
    """And not where links are slow beside processors (n < 2 f / (B (H - 1)))."""
    of = layer_of(GPT2, 2)
    for bytes_s, lends in ((1e9, True), (1e3, False)):
        asked = task(of, profile(of, [1e9, 1e9], bytes_s), Work(1000))
        best = LendingSearch(asked).best(0, WAYS[0]).layer
        assert isinstance(best, Lent) == lends
        if isinstance(best, Lent):
            assert best.columns == (3072, 0) and 0 < best.groups[1] < 12


@given(tasks(layers=2, members=3, rows=(3, 60), new=30, least_memory=60_000))
@settings(max_examples=20, deadline=None)
def test_blocks_lie_as_edgeshards_programme_finds_them(asked: Task) -> None:
    """Where nothing is lent; a shortest path over sets of devices finds no other time."""
    try:
        expected = asked.seconds(plan_edgeshard(asked))
    except DoesNotFit:
        with pytest.raises(DoesNotFit):
            plan_blocks(asked)
    else:
        assert asked.seconds(plan_blocks(asked)) == pytest.approx(expected)


def test_the_papers_blocks_prefer_a_small_slow_device() -> None:
    """Highest speed per storage first: the fast device gets what is left, and the plan is slower than the exact one."""
    of = layer_of(GPT2, 8)
    whole = task(of, profile(of, [1e9, 1e9], 1e9), Work(40))
    fast, small = whole.held(plan_local(whole))["a"], whole.held(plan_local(whole, "b"))["b"]
    memory = [fast.total, small.total - 6 * small.layers // 8]  # b has room for two layers of eight
    asked = task(of, profile(of, [4e9, 2e9], 1e9, memory=memory), Work(40), portal="a")
    plan = plan_by_efficiency(asked)
    assert plan.members == ("b", "a") and plan.layers == (Whole(0),) * 2 + (Whole(1),) * 6
    assert asked.seconds(plan) > asked.seconds(plan_edgeshard(asked))
    with pytest.raises(DoesNotFit, match="a lacks"):
        plan_by_efficiency(task(of, profile(of, [4e9, 2e9], 1e9, memory=[1e6, 1e6]), Work(40)))


def test_as_many_layers_lend_as_there_is_memory_for() -> None:
    """A lender that has room for the weights of one of three layers' heads and columns computes those of one."""
    way = next(way for way in WAYS if way.projections and way.columns and not way.steps_apart)
    free = task(TINY, profile(TINY, [1e6, 1e6], 1e9, rtt_s=1e-6), Work(60))
    rich = lent_plan(free, LendingSearch(free), way)
    assert all(isinstance(layer, Lent) for layer in rich.layers)
    held = free.held(rich)["b"]
    tight = held.total - held.layers // 2
    asked = task(TINY, profile(TINY, [1e6, 1e6], 1e9, rtt_s=1e-6, memory=[1e9, tight]), Work(60))
    plan = lent_plan(asked, LendingSearch(asked), way)
    assert [isinstance(layer, Lent) for layer in plan.layers] == [True, False, False]
    assert not asked.lacks(plan)


def test_it_says_what_it_chose_and_among_which() -> None:
    """In words and for programs: the chosen way first, with the seconds of all the work."""
    asked = task(TINY_CAUSAL, profile(TINY_CAUSAL, [1e6, 8e6], 1e6), Work(40, 8), portal="a")
    plan = plan_for("edgeformer", asked)
    (_, first), *others = plan.considered
    assert first == pytest.approx(asked.seconds(plan)) and all(first <= seconds for _, seconds in others)
    said = description(asked, plan)
    assert f"chosen: {plan.considered[0][0]} " in said and "others: " in said
    assert "\nlending projections at a pays " in said
    assert plan_facts(asked, plan)["considered"][0]["work_s"] == first
    lent = Lent(1, (1, 1), (0, 48))
    words = description(asked, GroupPlan("edgeformer", ("a", "b"), "a", (lent,) * 3))
    assert "layers 0 to 2: at b; lends of 2 groups of heads 1 to a\n" in words


def test_layers_that_attend_twice_are_not_lent() -> None:
    """T5's; other forms have them."""
    of = replace(TINY, layers=4, cross_layers=2)
    plan = plan_edgeformer(task(of, profile(of, [1e6, 1e6], 1e6), Work(30, 4)))
    assert not any(isinstance(layer, Lent) for layer in plan.layers)
