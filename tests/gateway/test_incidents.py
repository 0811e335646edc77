"""What went wrong lately: the newest, the same ones together, none washed away by others."""

from __future__ import annotations

import pytest

from gateway.incidents import EVERYBODY, MAX_INCIDENTS, MAX_WHO, OPERATORS, TOGETHER_S, Incidents
from gateway.noticed import noticed
from wire.group_messages import GroupReport, ReportedMember
from wire.request_messages import AgentState


def test_the_same_again_is_one_more() -> None:
    """Of the same kind, at the same place, with the same end, for the same ones to see; within a minute."""
    incidents = Incidents()
    for second in (0, 10, 20):
        incidents.note(1000.0 + second, "lost", "kitchen", "others go on")
    incidents.note(1021.0, "lost", "kitchen", "others go on", "one")
    incidents.note(1022.0, "lost", "shed", "others go on", times=4)
    kitchen, ones, shed = incidents.since(0)
    assert (kitchen.times, kitchen.id, kitchen.number, kitchen.at) == (3, 1, 3, 1_020_000)
    assert (ones.times, ones.whose, shed.times) == (1, "one", 4)
    incidents.note(1020.0 + TOGETHER_S + 1, "lost", "kitchen", "others go on")
    *others, again = incidents.since(0)
    assert [each.who for each in others] == ["kitchen", "kitchen", "shed"] and others[0] == kitchen
    assert (again.times, again.id) == (1, again.number)
    incidents.note(1020.0 + TOGETHER_S + 2, "lost", "kitchen", "others go on")
    assert incidents.since(0)[-1].times == 2 and len(incidents.since(0)) == 4


def test_only_what_is_newer_is_told() -> None:
    """By numbers, which grow with each time that something happens."""
    incidents = Incidents()
    assert incidents.since(0) == [] and incidents.number == 0
    incidents.note(1.0, "a", "", "")
    incidents.note(1.0, "b", "", "")
    seen = incidents.number
    assert incidents.since(seen) == []
    incidents.note(2.0, "a", "", "")
    assert [(each.kind, each.times) for each in incidents.since(seen)] == [("a", 2)]
    assert [each.kind for each in incidents.since(0)] == ["b", "a"]


@pytest.mark.parametrize("whose", [OPERATORS, "one"])
def test_they_are_bounded_and_requests_wash_no_device_away(whose: str) -> None:
    """Names are cut too."""
    incidents = Incidents()
    incidents.note(1.0, "lost", "k" * 1000, "others go on")
    for number in range(3 * MAX_INCIDENTS):
        incidents.note(2.0, f"code {number}", "", "refused", whose)
    kept = incidents.since(0)
    assert len(kept) == MAX_INCIDENTS + 1 and kept[0].whose == EVERYBODY and kept[0].who == "k" * MAX_WHO
    assert kept[1].kind == f"code {2 * MAX_INCIDENTS}" and len(incidents._last) == len(kept)


def group(*states: str, formed: bool = True) -> GroupReport:
    """A group whose members are in these states."""
    members = [ReportedMember(f"m{at}", state) for at, state in enumerate(states)]
    return GroupReport("home", "galaxy", 1, formed, "", members)


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        (None, AgentState(0, False, group("lost"), 9), []),
        (AgentState(0, True), AgentState(3, True), []),
        (AgentState(0, None), AgentState(0, True), []),
        (AgentState(0, True), AgentState(0, False), ["cloud_lost"]),
        (AgentState(0, False), AgentState(0, True), ["cloud_back"]),
        (AgentState(0, True, group("working")), AgentState(0, False, group("lost")), ["group_lost", "member_lost"]),
        (AgentState(0, True, group("working", "slow")), AgentState(0, True, group("slow", "slow")), ["member_slow"]),
        (AgentState(0, True, group("slow")), AgentState(0, True, group("working")), []),
        (AgentState(0, True, None, 1), AgentState(0, True, None, 4), ["sessions_restored"]),
        (AgentState(0, True, None, 4), AgentState(0, True, None, 0), []),
    ],
)
def test_what_a_report_says_that_it_did_not_say_before(
    before: AgentState | None, now: AgentState, kinds: list[str]
) -> None:
    """What has changed for the worse, what came back, and of the first report nothing."""
    found = noticed("kitchen", before, now)
    assert [each.kind for each in found] == kinds and all(each.done for each in found)
