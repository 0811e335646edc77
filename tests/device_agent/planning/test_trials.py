"""Which manners of running a plan a group tries, and which it keeps."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from group_plans import BERT_LARGE, GPT2, env_a, env_b, task, tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import PLANNERS, plan_for
from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Sharded, Whole, as_run, weights_of
from device_agent.planning.task import Task, Work
from device_agent.planning.trials import (
    EVERY_ROW,
    FASTEST,
    MOST_TRIED,
    USUAL_ERROR,
    Manner,
    Trial,
    in_manner,
    some,
    trial_of,
)

SHARES = st.sampled_from([(), (100, 1), (50, 100)])

MANNERS = st.builds(Manner, st.sampled_from([None, False, True]), st.booleans(), st.booleans(), SHARES)


@given(tasks(4, 3, (4, 24), 20, 40_000), st.sampled_from(sorted(PLANNERS)))
@settings(max_examples=10, deadline=None)
def test_what_is_tried_needs_no_weights_that_are_not_there(asked: Task, mode: str) -> None:
    """In each manner it is a plan of the same model, of which nobody has to hold more; the plan's own comes first, and
    what was predicted to be much slower than another is not tried."""
    try:
        plan = plan_for(mode, asked)
    except DoesNotFit:
        return
    trial = trial_of(asked, plan)
    if trial is None:
        return
    made = [in_manner(plan, manner) for manner in trial.manners]
    assert made[0] == plan and 2 <= len(made) <= MOST_TRIED and len(set(made)) == len(made)
    assert 1 <= trial.layers <= len(plan.layers)
    seconds = [asked.prefill(one).seconds for one in made]
    assert all(one <= min(seconds) * (1 + USUAL_ERROR) * (1 + 1e-9) for one in seconds[1:])
    for one in made:
        one.check(asked.shape)
        for before, after in zip(plan.layers, one.layers, strict=True):
            for member in range(len(plan.members)):
                (had, columns), (groups, wanted) = (weights_of(asked.shape, of, member) for of in (before, after))
                assert set(groups or ()) <= set(had or ()) and set(wanted) <= set(columns)


@pytest.mark.parametrize("mode", ["pipeline", "local", "tensor"])
def test_where_there_is_one_way_nothing_is_tried(mode: str) -> None:
    """Whole layers, and heads and columns, are run as they are."""
    asked = task(BERT_LARGE, env_a(BERT_LARGE), Work(284, 0, 284))
    assert trial_of(asked, plan_for(mode, asked)) is None


def test_a_near_prediction_is_tried_and_a_far_one_is_not() -> None:
    """At a bandwidth at which waiting for tiles costs little both ways are tried; where links are so slow that one of
    the devices alone would be ten times as fast, sharing is not."""
    near = task(BERT_LARGE, env_a(BERT_LARGE, 4000), Work(96, 0, 96))
    layer = Hybrid((4,) * 4, (1024,) * 4, (1.0,) * 4)
    trial = trial_of(near, GroupPlan("galaxy", near.members, "a", (layer,) * 24))
    assert trial is not None and Manner(overlap=False) in trial.manners and Manner(few=True) in trial.manners
    long = replace(near, work=Work(284, 0, 284))  # Of what takes so long only two ways are tried.
    trial = trial_of(long, GroupPlan("galaxy", near.members, "a", (layer,) * 24))
    assert trial is not None and trial.manners == (Manner(), Manner(overlap=False))
    slow = task(BERT_LARGE, env_b(BERT_LARGE, 1), Work(284, 0, 284))
    rows = ByRows((1.0,) * 4, Whole(0))
    trial = trial_of(slow, GroupPlan("voltage", slow.members, "a", (rows,) * 24))
    assert trial is not None and trial.manners == (Manner(), Manner(few=True))
    assert trial.words == ("as planned", "at one device")


def test_the_published_way_is_tried_beside_prefixes() -> None:
    """Shares by speed, to everybody, where what sends rows only to those behind was planned; not where memory has room
    for prefixes only."""
    asked = task(GPT2, env_b(GPT2), Work(192, 64, 192))
    layer = ByRows((1.0, 3.0, 1.0, 1.0), Whole(3), prefix=True, overlap=False)
    plan = GroupPlan("voltage", asked.members, "a", (layer,) * 12)
    trial = trial_of(asked, plan)
    assert trial is not None
    [manner] = [each for each in trial.manners if each.shares]
    assert max(manner.shares) == FASTEST and manner.shares[0] > manner.shares[3] >= 1
    made = in_manner(plan, manner)
    assert set(made.layers) == {ByRows(tuple(map(float, manner.shares)), Whole(3), overlap=False)}
    held, more = asked.held(plan), asked.held(made)
    first = asked.members[0]
    assert held[first].total < more[first].total
    devices = tuple(
        msgspec.structs.replace(device, memory_bytes=held[device.name].total) if device.name == first else device
        for device in asked.profile.devices
    )
    short = replace(asked, profile=msgspec.structs.replace(asked.profile, devices=devices))
    trial = trial_of(short, plan)
    assert trial is None or not any(each.shares for each in trial.manners)


@pytest.mark.parametrize("shares", [(100, 40, 1), (100, 0)])
def test_shares_of_other_members_are_refused(shares: tuple[int, ...]) -> None:
    """They would not agree whose rows are whose; and who has none could not send any."""
    with pytest.raises(ValueError, match="no shares of 2 members"):
        Manner(shares=shares).of(ByRows((1.0, 1.0), Whole(0)))


@given(MANNERS)
def test_a_manner_of_a_manner_changes_nothing(manner: Manner) -> None:
    """What was changed stays so, and steps of few rows are what they were."""
    layers: list[Layer] = [
        Hybrid((2, 2), (22, 22), (1.0, 3.0), mlp_by_rows=True, few_rows=3),
        ByRows((1.0, 1.0), Sharded((2, 2), (22, 22)), pieces=2),
        Whole(1),
    ]
    for layer in layers:
        once = manner.of(layer)
        assert manner.of(once) == once
        assert as_run(once, 1, 0) == as_run(layer, 1, 0)
        if manner.few and isinstance(layer, (Hybrid, ByRows)):
            assert as_run(once, EVERY_ROW, 0) == layer.step


def test_the_fastest_is_kept() -> None:
    """By the median of its runs; within what times differ by anyway the plan's own."""
    own, other, third = Manner(), Manner(overlap=False), Manner(few=True)
    trial = Trial((own, other, third), ("", "", ""), 8, 2)
    assert trial.chosen({own: [1.0, 9.0, 1.0], other: [2.0, 2.0, 0.1], third: [1.5]}) == own
    assert trial.chosen({own: [2.0, 2.0, 0.1], other: [1.0, 1.0, 9.0], third: [1.5]}) == other
    assert trial.chosen({own: [1.01] * 3, other: [1.0] * 3, third: [1.0] * 3}) == own
    for few, best in ((1, own), (3, other)):
        assert trial.chosen({own: [1.1] * few, other: [1.0] * few, third: [1.2] * few}) == best


def test_some_layers_are_taken_evenly() -> None:
    """In their order; all where as many are wanted, or more, or 0."""
    assert some(range(24), 4) == [3, 9, 15, 21]
    assert some(range(3), 9) == some(range(3), 0) == [0, 1, 2]
