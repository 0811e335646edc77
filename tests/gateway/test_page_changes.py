"""What is new between two looks, and who is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.incidents import EVERYBODY, OPERATORS, Incident
from gateway.observation import MAX_KEPT, REMEMBERED, Observation
from gateway.page.changes import Audience, all_of, between
from gateway.page.view import Seen
from wire.observed_messages import Mark, Observed, ObservedRequest

BEFORE = Seen(b'"before"', {"a": b'"a1"', "b": b'"b1"'}, {"1": ("x", b'"one"'), "2": ("y", b'"two"')})
NOW = Seen(b'"now"', {"a": b'"a1"', "c": b'"c1"'}, {"1": ("x", b'"one!"'), "3": ("y", b'"three"')})
MARKS = [("x", b'"mark of x"'), ("y", b'"mark of y"')]
SEEN_BY = (EVERYBODY, OPERATORS, "x")
INCIDENTS = [Incident(at, at, 0, f"kind {at}", "", "", 1, whose) for at, whose in enumerate(SEEN_BY)]
X, Y, BOSS = Audience("x"), Audience("y"), Audience("z", operator=True)


def told(data: bytes) -> tuple[str, Any]:
    """The one event's name and what it says."""
    name, text = data.decode().removesuffix("\n\n").split("\n")
    assert data.endswith(b"\n\n") and text.startswith("data: ")
    return name.removeprefix("event: "), json.loads(text.removeprefix("data: "))


@pytest.mark.parametrize(
    ("audience", "requests", "gone", "marks", "kinds"),
    [
        (X, ["one!"], [], ["mark of x"], ["kind 0", "kind 2"]),
        (Y, ["three"], ["2"], ["mark of y"], ["kind 0"]),
        (BOSS, ["one!", "three"], ["2"], ["mark of x", "mark of y"], ["kind 0", "kind 1", "kind 2"]),
    ],
)
def test_what_has_changed(audience: Audience, requests: Any, gone: Any, marks: Any, kinds: Any) -> None:
    """Agents for everybody; requests, their marks and what went wrong with them for those whose they are."""
    name, data = told(between(BEFORE, NOW, MARKS, INCIDENTS).told(audience))
    assert name == "change" and data["totals"] == "now" and data["operator"] is audience.operator
    assert data["agents"] == ["c1"] and data["agents_gone"] == ["b"]
    assert data["requests"] == requests and data.get("requests_gone", []) == gone and data["marks"] == marks
    assert [each["kind"] for each in data["incidents"]] == kinds
    assert all("whose" not in each for each in data["incidents"])


def test_what_is_hidden_is_not_over() -> None:
    """Where others are shown in its place it goes on."""
    now = Seen(NOW.totals, NOW.agents, NOW.requests, running=frozenset({"1", "2", "3"}))
    _, data = told(between(BEFORE, now, (), ()).told(Y))
    assert data["requests_hidden"] == ["2"] and "requests_gone" not in data


def test_nothing_new_is_next_to_nothing() -> None:
    """Sums alone."""
    assert told(between(NOW, NOW, (), ()).told(BOSS)) == ("change", {"operator": True, "totals": "now"})
    alone = Seen(NOW.totals, NOW.agents, NOW.requests, b'"alone"')
    assert told(between(NOW, alone, (), ()).told(BOSS))[1] == {"operator": True, "totals": "now", "fleet": "alone"}


def test_all_there_is() -> None:
    """Every list is there, empty or not."""
    name, data = told(all_of(NOW, INCIDENTS).told(Y))
    assert name == "whole" and data["agents"] == ["a1", "c1"] and data["requests"] == ["three"]
    assert data["marks"] == data["agents_gone"] == data["requests_gone"] == []


def test_an_agent_is_believed_of_requests_that_it_was_sent() -> None:
    """While it is asked; those that are over are remembered, so that their last marks find their tenants."""
    observation = Observation()
    observation.began(1, "x")
    marks = [Mark(1, "round", 500_000, 1000, 1), Mark(2, "chunk", 0, 1, 1)]
    said = Observed("1", "hat", [ObservedRequest(1, "reads")], marks, [])
    observation.heard(said, 100.0)
    assert observation.last is None and observation.take() == [] and observation.of(1) is None
    observation.every_ms = 500
    observation.heard(said, 100.0)
    assert observation.last == said and observation.of(1) == said.requests[0]
    [passed] = observation.take()
    assert (passed.tenant, passed.at, passed.mark) == ("x", 99.5, said.marks[0]) and observation.take() == []
    observation.began(2, "y")
    observation.ended(2)
    for number in range(3, REMEMBERED + 3):
        observation.heard(said, 101.0)
        assert [each.mark.request for each in observation.take()] == [1, 2]
        observation.began(number, "y")
        observation.ended(number)
    observation.heard(said, 101.0)
    assert [each.mark.request for each in observation.take()] == [1]  # However many came behind it, it is not over.
    observation.forget()
    assert observation.last is None and observation.every_ms == 0 and observation.of(1) is None


def test_what_nobody_takes_is_bounded() -> None:
    """And counted as lost."""
    observation = Observation()
    observation.every_ms = 500
    observation.began(1, "x")
    marks = [Mark(1, "round", 0, 1, 1)] * (MAX_KEPT // 2)
    for _ in range(3):
        observation.heard(Observed("1", "hat", [], marks, [], 2), 1.0)
    assert len(observation.take()) == MAX_KEPT and observation.lost == MAX_KEPT // 2 + 6
