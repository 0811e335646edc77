"""How many rows are few is decided by what was measured, and the prediction goes by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_plans import TINY, TINY_CAUSAL, profile, task
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.few_rows import MOST_FEW, with_few_rows
from device_agent.planning.modes import plan_for
from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Sharded, Whole
from device_agent.planning.task import Task, Work
from device_agent.planning.timeline import ForwardPass

SHARDED = Sharded((2, 2), (24, 24))


def asked_for(bytes_s: float, rtt_s: float = 2e-4, work: Work | None = None) -> Task:
    return task(TINY, profile(TINY, [1e6, 1e6], bytes_s, rtt_s=rtt_s, one_shot_bytes=0), work or Work(40, wanted=40))


def plan(*layers: Layer) -> GroupPlan:
    return GroupPlan("test", ("a", "b"), "a", layers * 3)


def few_of(found: GroupPlan) -> int:
    """Of all layers."""
    [few] = {layer.few_rows for layer in found.layers if isinstance(layer, (ByRows, Hybrid))}
    return few


def test_on_slow_links_who_computes_alone_takes_all_that_may_be_few() -> None:
    """Nothing travels then, and no number of rows is worth waiting for the link."""
    assert few_of(with_few_rows(asked_for(10.0), plan(ByRows((1.0, 1.0), Whole(0))))) == MOST_FEW


def test_on_slow_links_nothing_is_summed_that_can_be_gathered() -> None:
    """Two sums a layer are twice the bytes of one gather, so that even two rows are shared by rows."""
    assert few_of(with_few_rows(asked_for(1000.0), plan(ByRows((1.0, 1.0), SHARDED)))) <= 1


def test_one_row_is_few_where_tokens_are_generated() -> None:
    """Whatever is predicted: its keys and values are then where those of other tokens are."""
    of = TINY_CAUSAL
    asked = task(of, profile(of, [1e6, 1e6], 1000.0, one_shot_bytes=0), Work(40, 10))
    assert few_of(with_few_rows(asked, plan(ByRows((1.0, 1.0), Sharded((1, 1), (24, 24)))))) >= 1


@given(st.floats(1e2, 1e8), st.floats(0, 1e-2), st.booleans())
def test_the_border_lies_where_times_cross(bytes_s: float, rtt_s: float, hybrid: bool) -> None:
    """At it few rows are as fast by the plan's step; the next size is not, or is never few."""
    layer: Layer = Hybrid((2, 2), (24, 24), (1.0, 1.0)) if hybrid else ByRows((1.0, 1.0), SHARDED)
    asked = asked_for(bytes_s, rtt_s)
    few = few_of(found := with_few_rows(asked, plan(layer)))

    def seconds(rows: int, most: int) -> float:
        layers = tuple(replace(each, few_rows=most) for each in found.layers)  # type: ignore[arg-type]
        return asked.forward(replace(found, layers=layers), ForwardPass(rows, 0, rows)).seconds

    if few:
        assert seconds(few, few) <= seconds(few, 0)
    following = 2 * few or 1
    assert following > MOST_FEW or seconds(following, following) > seconds(following, 0)


@pytest.mark.parametrize("mode", ["voltage", "galaxy"])
def test_modes_say_it_in_every_layer(mode: str) -> None:
    """What is planned has one border for all layers, and whole layers have none."""
    found = plan_for(mode, asked_for(1e6))
    assert len({layer.few_rows for layer in found.layers if isinstance(layer, (ByRows, Hybrid))}) == 1
    pipeline = plan(Whole(0), Whole(1))
    assert with_few_rows(asked_for(1e6), pipeline) == pipeline
