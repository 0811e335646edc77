"""Modes by name, and fewer devices where they are faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_plans import GPT2, OPT_1_3B, TINY, TINY_CAUSAL, classifier, layer_of, profile, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.baselines import plan_tensor
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import PLANNERS, SAME, fewer_devices, plan_for
from device_agent.planning.task import Work

SMALL_GPT2 = layer_of(GPT2, 2)


@pytest.mark.parametrize("mode", PLANNERS)
@pytest.mark.parametrize("of", [TINY, TINY_CAUSAL], ids=["all", "causal"])
def test_every_mode_plans_by_its_name(mode: str, of: object) -> None:
    """A plan of that name that fits, also where the portal computes nothing."""
    shape = TINY if of is TINY else TINY_CAUSAL
    measured = profile(shape, [1e6, 2e6, 3e6], 1e6)
    for members in ("abc", "bc"):
        asked = task(shape, measured, Work(12, 3 if shape.causal else 0), members=members, portal="a")
        plan = plan_for(mode, asked)
        plan.check(shape)
        assert plan.mode == mode and plan.portal == "a" and not asked.lacks(plan)


@pytest.mark.parametrize("mode", PLANNERS)
def test_a_plan_says_what_goes_in_one_shot(mode: str) -> None:
    """What was measured, so that who computes goes by what was predicted with."""
    measured = profile(TINY_CAUSAL, [1e9, 2e9], 1e7, one_shot_bytes=4321)
    assert plan_for(mode, task(TINY_CAUSAL, measured, Work(50, 5))).one_shot_bytes == 4321


def test_another_mode_is_refused() -> None:
    """By the names of those there are."""
    with pytest.raises(
        ValueError,
        match=r"mode 'magic' is not one of voltage, galaxy, tensor, sequence, pipeline, lime, edgeformer, local",
    ):
        plan_for("magic", task(TINY, profile(TINY, [1e6], 1e6), Work(5)))


@pytest.mark.parametrize("mode", PLANNERS)
def test_what_does_not_fit_is_said_by_the_modes_name(mode: str) -> None:
    """And who lacks how much."""
    asked = task(OPT_1_3B, profile(OPT_1_3B, [1e9] * 2, 1e7, memory=[1e9, 1.5e9]), Work(60))
    with pytest.raises(DoesNotFit, match=f"^{mode} does not fit: (a|b) lacks"):
        plan_for(mode, asked)
    assert fewer_devices(mode, asked, None) is None


@pytest.mark.parametrize("mode", [pytest.param("galaxy", marks=pytest.mark.slow), "voltage", "tensor"])
def test_slow_links_make_fewer_devices_faster(mode: str) -> None:
    """On links of 0.1 Mb/s with 50 ms the portal alone is best; on fast links all together are."""
    of = classifier(SMALL_GPT2)
    speeds = [1e9, 3e9, 1e9]
    slow = task(of, profile(of, speeds, 1e5 / 8, rtt_s=0.05), Work(64, 20))
    found = fewer_devices(mode, slow, plan_for(mode, slow))
    assert found is not None and found.members == ("a",)
    fast = task(of, profile(of, speeds, 1e9, rtt_s=1e-5), Work(64, 20))
    assert fewer_devices(mode, fast, plan_for(mode, fast)) is None


def test_a_slow_device_is_left_out() -> None:
    """Even shares, as in the papers, let the slowest of three hold up both others."""
    of = classifier(SMALL_GPT2)
    asked = task(of, profile(of, [3e9, 3e9, 1e8], 1e8), Work(64))
    found = fewer_devices("voltage", asked, plan_tensor(asked))
    assert found is not None and set(found.members) == {"a", "b"}


@given(st.lists(st.floats(1e5, 1e7), min_size=2, max_size=3), st.floats(1e3, 1e7), st.sampled_from(list(PLANNERS)))
@settings(max_examples=8, deadline=None)
def test_what_is_named_has_fewer_and_is_no_slower(speeds: list[float], bytes_s: float, mode: str) -> None:
    """Or as fast; and it fits."""
    asked = task(TINY, profile(TINY, speeds, bytes_s), Work(12))
    plan = plan_for(mode, asked)
    found = fewer_devices(mode, asked, plan)
    if found is not None:
        assert len(found.members) < len(plan.members)
        assert not asked.lacks(found)
        assert asked.seconds(found) <= asked.seconds(plan) * (1 + SAME)


@pytest.mark.parametrize("mode", ["tensor", "pipeline"])
def test_many_devices_take_seconds(mode: str) -> None:
    """Not every set of them is looked at: among sixteen are 65 thousand, and pipelines in ten thousand times as many
    orders. Who is slow is left out all the same."""
    of, speeds = replace(TINY_CAUSAL, layers=24), [1e9] * 15 + [1e3]
    asked = task(of, profile(of, speeds, 1e9, rtt_s=1e-6), Work(64, 8))
    plan = plan_for(mode, asked)
    found = fewer_devices(mode, asked, plan)
    assert "p" not in (found or plan).members


def test_a_smaller_group_is_found_where_all_do_not_fit() -> None:
    """Voltage needs the whole model at each member: a small device is left out."""
    of = TINY
    asked = task(of, profile(of, [1e6] * 3, 1e7, memory=[1e9, 1e9, 1e4]), Work(40))
    with pytest.raises(DoesNotFit, match="c lacks"):
        plan_for("voltage", asked)
    found = fewer_devices("voltage", asked, None)
    assert found is not None and set(found.members) == {"a", "b"}
