"""A plan as data says what the plan and its prediction say."""

from __future__ import annotations

import json

from group_plans import TINY, TINY_CAUSAL, profile, task

from device_agent.planning.baselines import plan_local, plan_pipeline, plan_tensor
from device_agent.planning.facts import plan_facts
from device_agent.planning.task import Work


def test_it_is_all_there_and_can_be_written() -> None:
    """Times, bytes and who does what, as the task predicts them."""
    asked = task(TINY_CAUSAL, profile(TINY_CAUSAL, [1e9, 2e9], 1e7), Work(50, 10))
    plan, fewer = plan_tensor(asked), plan_local(asked)
    facts = json.loads(json.dumps(plan_facts(asked, plan, fewer)))
    assert facts["prompt_s"] == asked.prefill(plan).seconds and facts["new_token_s"] == asked.step(plan).seconds
    assert [each["name"] for each in facts["devices"]] == ["a", "b"]
    assert [each["memory_bytes"] for each in facts["devices"]] == [held.total for held in asked.held(plan).values()]
    [layers] = facts["layers"]
    assert (layers["form"], layers["first"], layers["last"]) == ("Sharded", 0, TINY_CAUSAL.layers - 1)
    assert sum(layers["columns"]) == TINY_CAUSAL.intermediate
    assert facts["fewer"]["members"] == ["a"] and facts["fewer"]["fewer"] is None


def test_runs_of_layers_and_one_shot_work() -> None:
    """Layers that differ are told apart; where nothing is generated nothing is said of new tokens."""
    asked = task(TINY, profile(TINY, [1e9, 1e9], 1e7), Work(50, 0, 50))
    facts = plan_facts(asked, plan_pipeline(asked, [2, 1]))
    assert [(each["first"], each["last"], each["member"]) for each in facts["layers"]] == [(0, 1, 0), (2, 2, 1)]
    assert "new_token_s" not in facts and facts["fewer"] is None
