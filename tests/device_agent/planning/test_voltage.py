"""Voltage's plans."""

from __future__ import annotations

import pytest
from group_plans import BERT_LARGE, GPT2, LLAMA_8B, PAPERS, TINY, TINY_CAUSAL, classifier, layer_of, profile, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import ByRows, Sharded, Whole
from device_agent.planning.ratios import by_speed, even
from device_agent.planning.shares import all_ways
from device_agent.planning.task import Task, Work
from device_agent.planning.voltage import plan_published, plan_voltage


def rows_of(plan: object) -> list[ByRows]:
    layers = plan.layers  # type: ignore[attr-defined]
    assert all(isinstance(layer, ByRows) for layer in layers)
    return list(layers)


@st.composite
def tasks(draw: st.DrawFn, causal: bool | None = None) -> Task:
    causal = draw(st.booleans()) if causal is None else causal
    members = draw(st.integers(1, 4))
    speeds = draw(st.lists(st.floats(1e5, 1e7), min_size=members, max_size=members))
    measured = profile(
        TINY_CAUSAL if causal else TINY,
        speeds,
        draw(st.floats(1e4, 1e7)),
        overhead_s=draw(st.sampled_from([0.0, 1e-3])),
        one_shot_bytes=draw(st.sampled_from([0, 4096])),
    )
    rows = draw(st.integers(5, 30))
    work = Work(rows, draw(st.integers(0, 20)) if causal else 0, draw(st.sampled_from([1, rows])))
    return task(TINY_CAUSAL if causal else TINY, measured, work)


@given(tasks())
@settings(max_examples=6, deadline=None)
def test_it_is_no_slower_than_even_or_proportional_ratios(asked: Task) -> None:
    """Nor than the paper's own way, and it fits and goes on."""
    plan = plan_voltage(asked)
    plan.check(asked.shape)
    assert not asked.lacks(plan)
    seconds = asked.seconds(plan)
    for ratios in (even(asked), by_speed(asked)):
        assert seconds <= asked.seconds(plan_voltage(asked, ratios)) * (1 + 1e-9)
        assert seconds <= asked.seconds(plan_published(asked, ratios)) * (1 + 1e-9)


@given(st.lists(st.floats(1e5, 1e7), min_size=2, max_size=3), st.integers(3, 9), st.floats(1e4, 1e7))
@settings(max_examples=8, deadline=None)
def test_few_rows_are_cut_as_well_as_can_be(speeds: list[float], rows: int, bytes_s: float) -> None:
    """No ratios at all give a faster plan, where all can be tried."""
    asked = task(TINY, profile(TINY, speeds, bytes_s, one_shot_bytes=0), Work(rows))
    best = asked.seconds(plan_voltage(asked))
    for parts in all_ways(rows, len(speeds)):
        assert best <= asked.seconds(plan_voltage(asked, parts)) * (1 + 1e-9)


def test_a_published_plan_is_the_papers() -> None:
    """Even ratios, hidden states to all, nothing overlapped: Algorithm 2; Eq. 8 where the profile says so."""
    asked = task(BERT_LARGE, profile(BERT_LARGE, [1e9] * 6, 5e8 / 8), Work(200, 0, 200))
    layers = rows_of(plan_published(asked))
    assert len(set(layers)) == 1
    assert layers[0].rows == (1.0,) * 6 and not layers[0].overlap and not layers[0].keys_values
    assert layers[0].reordered == (True,) * 6


def test_grouped_keys_and_values_are_gathered_instead() -> None:
    """Where links are slow and four query heads share a KV head, half as many bytes are sent so."""
    of = layer_of(LLAMA_8B, 2)
    asked = task(of, profile(of, [1e11] * 4, 1e7), Work(200))
    assert all(layer.keys_values for layer in rows_of(plan_voltage(asked)))


def test_a_causal_prompt_is_cut_unevenly() -> None:
    """With prefixes nobody waits for those behind; the last member has all keys and values, and goes on alone."""
    asked = task(GPT2, profile(GPT2, [1e9] * 4, 4e7, rtt_s=0.05), Work(400, 5))
    plan = plan_voltage(asked)
    assert all(layer.prefix and layer.step == Whole(3) for layer in rows_of(plan))
    assert plan.members == ("b", "c", "d", "a") and plan.portal == "a"
    assert len(set(rows_of(plan)[1].rows)) > 1


def test_who_goes_on_is_who_is_fastest() -> None:
    """One member alone, or all of them by heads and columns where links are fast enough."""
    of = TINY_CAUSAL
    speeds = [1e5, 1e7, 1e5]
    slow = plan_voltage(task(of, profile(of, speeds, 1e5, rtt_s=0.001), Work(6, 200)), [1.0, 1.0, 1.0])
    assert rows_of(slow)[0].step == Whole(1) or rows_of(slow)[0].prefix
    fast = plan_voltage(task(of, profile(of, [1e5] * 2, 1e12, rtt_s=0), Work(6, 200)))
    assert isinstance(rows_of(fast)[0].step, Sharded)


def test_a_terminal_need_not_compute() -> None:
    """The portal is no member, and has only embedding and head."""
    measured = profile(TINY, [1e6] * 3, 1e6)
    asked = task(TINY, measured, Work(40), members=["b", "c"], portal="a")
    plan = plan_voltage(asked)
    assert plan.members == ("b", "c") and plan.portal == "a"
    assert asked.held(plan)["a"].layers == 0
    assert asked.seconds(plan) > 0


def test_too_little_memory_is_named() -> None:
    """Everybody needs the whole model."""
    whole = task(TINY, profile(TINY, [1e6] * 3, 1e6), Work(40)).held
    needed = whole(plan_voltage(task(TINY, profile(TINY, [1e6] * 3, 1e6), Work(40))))["b"].layers
    asked = task(TINY, profile(TINY, [1e6] * 3, 1e6, memory=[1e9, needed / 2, 1e9]), Work(40))
    for plan in (plan_voltage, plan_published):
        with pytest.raises(DoesNotFit, match="voltage does not fit: b lacks") as raised:
            plan(asked)
        assert [lack.device for lack in raised.value.lacks] == ["b"]
        assert raised.value.lacks[0].needed > raised.value.lacks[0].budget == int(needed / 2)


@pytest.mark.parametrize("name", PAPERS)
def test_more_devices_are_faster_on_fast_links(name: str) -> None:
    """Each of the papers' models, by two, four and six devices; T5's decoder writes as much as its encoder reads."""
    of = layer_of(classifier(PAPERS[name]), 4)
    measured = profile(of, [3e9] * 6, 1e9, rtt_s=1e-4)
    seconds = []
    for members in (1, 2, 4, 6):
        asked = task(of, measured, Work(200, 0, 200 if of.cross_layers else 1), members="abcdef"[:members])
        seconds.append(asked.seconds(plan_published(asked)))
    assert seconds == sorted(seconds, reverse=True)
