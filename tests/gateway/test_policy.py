"""Choosing an agent: records in, a choice out."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.policy import Choice, Reason, Use, Wish, choose, models_served, pick_model
from gateway.registry.registry import AgentRecord
from wire.request_messages import ServedModel

A, B = ServedModel("a", 100, 1), ServedModel("b", 50, 2)


def record(key: str, running: int = 0, capacity: int = 2, **members: object) -> AgentRecord:
    fields = {"models": (A,), "name": key} | members
    return AgentRecord(key=key, capacity=capacity, running=running, **fields)  # type: ignore[arg-type]


def chosen(agents: Any, model: str, tried: Any = (), draft: str = "", tenant: str = "", held: Any = None) -> Choice:
    return choose(agents, Wish(model, frozenset(tried), draft, tenant), held or {})


def test_the_least_loaded_share_of_capacity() -> None:
    """Two of eight are less than one of two."""
    assert chosen([record("x", 1, 2), record("y", 2, 8)], "a") == Use("y")


def test_equals_take_turns() -> None:
    """Fewest requests so far, then the longest known."""
    assert chosen([record("x", assigned=3), record("y", assigned=2), record("z", assigned=2)], "a") == Use("y")


def test_model_draining_and_cloud_are_honoured() -> None:
    """Only an agent that can answer."""
    unable = [record("x", models=(B,)), record("y", draining=True), record("z", cloud_connected=False)]
    assert chosen([*unable, record("w", 1, cloud_connected=True)], "a") == Use("w")
    assert chosen(unable, "a") == Reason.UNAVAILABLE
    assert chosen(unable, "c") == Reason.MODEL_NOT_FOUND
    assert chosen([], "a") == Reason.NO_AGENT


def test_a_drafter_that_is_named_is_had() -> None:
    """Waited for where its agents are busy, refused where nobody has it; everybody can do without."""
    fast = ServedModel("a", 100, 1, ["hybrid", "lookup", "none"])
    agents = [record("x"), record("y", 1, models=(fast,))]
    assert chosen(agents, "a") == chosen(agents, "a", draft="none") == Use("x")
    assert chosen(agents, "a", draft="lookup") == Use("y")
    assert chosen(agents, "a", draft="fused") == Reason.NO_SUCH_DRAFTER
    assert chosen([record("x"), record("y", 2, models=(fast,))], "a", draft="lookup") is None
    assert chosen([record("x"), record("y", draining=True, models=(fast,))], "a", draft="lookup") == (
        Reason.UNAVAILABLE
    )
    assert chosen([record("x", models=(A, ServedModel("b", 9, 1, ["lookup"])))], "a", draft="lookup") == (
        Reason.NO_SUCH_DRAFTER
    )


def test_scores_are_asked_of_who_tells_them() -> None:
    """Waited for where all of them are busy, refused where nobody does."""
    asked, able = Wish("a", scored_by="logprobs"), ServedModel("a", 80, 1, scores=True)
    old, fits = record("x"), record("y", 1, models=(able,))
    assert choose([old, fits], asked, {}) == Use("y") and choose([old, fits], Wish("a"), {}) == Use("x")
    assert choose([old, record("y", 2, models=(able,))], asked, {}) is None
    assert choose([old], asked, {}) == Reason.NO_SCORES
    assert models_served([old, fits]) == [ServedModel("a", 80, 1, scores=True)]


def test_wait_when_all_are_full() -> None:
    """And not when the rest have been tried."""
    assert chosen([record("x", 2)], "a") is None
    assert chosen([record("x", 2), record("y", 2)], "a", ["x"]) is None
    assert chosen([record("x", 0)], "a", ["x"]) == Reason.ALL_TRIED


def test_models_in_the_order_seen_with_the_shortest_limit() -> None:
    """Any of the agents may get the request."""
    agents = [record("x", models=(A,)), record("y", models=(B, ServedModel("a", 80, 9)))]
    assert models_served(agents) == [ServedModel("a", 80, 1), B]
    drafting = [record("z", models=(ServedModel("a", 80, 1, names),)) for names in (["l"], ["f", "l"])]
    assert models_served([*agents, *drafting])[0].drafts == ["l", "f"]
    assert pick_model(agents, None) == ServedModel("a", 80, 1)
    assert pick_model(agents, "b") == B
    assert pick_model(agents, "c") == Reason.MODEL_NOT_FOUND
    assert pick_model([], None) == Reason.NO_AGENT


records = st.builds(
    AgentRecord,
    key=st.text("xyz", min_size=1, max_size=3),
    name=st.just("n"),
    models=st.sampled_from([(A,), (B,), (A, B)]),
    capacity=st.integers(0, 4),
    running=st.integers(0, 5),
    assigned=st.integers(0, 5),
    draining=st.booleans(),
    cloud_connected=st.sampled_from([None, True, False]),
)


@given(agents=st.lists(records, max_size=6, unique_by=lambda each: each.key), tried=st.sets(st.text("xyz", max_size=3)))
def test_whoever_is_used_can_take_it_and_waiting_means_nobody_can(agents: Any, tried: Any) -> None:
    """For any set of agents."""
    choice = chosen(agents, "a", tried)
    able = {
        agent.key
        for agent in agents
        if A in agent.models and not agent.draining and agent.cloud_connected is not False and agent.key not in tried
        and agent.running < agent.capacity
    }  # fmt: skip
    if isinstance(choice, Use):
        assert choice.key in able
    else:
        assert not able
