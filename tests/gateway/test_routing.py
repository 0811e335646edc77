"""Which gateway gets a request: that of the best agent of all, or where fewest wait."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.policy import Wish
from gateway.registry.registry import AgentRecord, Peer
from gateway.routing import better_gateway
from wire.request_messages import ServedModel

WISH = Wish("m")
AGENT = AgentRecord("a", "a", (ServedModel("m", 9, 1),), 4)
OTHER = replace(AGENT, models=(ServedModel("other", 9, 1),))


def peer(id: str, *running: int, waiting: int = 0, agent: AgentRecord = AGENT) -> Peer:
    agents = (replace(agent, key=f"{id}/{at}", running=busy) for at, busy in enumerate(running))
    return Peer(id, f"http://{id}", tuple(agents), waiting)


def better(here: list[AgentRecord], *peers: Peer, waiting: int = 0, **more: Any) -> str | None:
    found = better_gateway(here, waiting, peers, more.pop("wish", WISH), {}, more.pop("sent", {}), **more)
    return None if found is None else found.peer.id + ("" if found.free else ", to wait")


def test_the_least_loaded_agent_decides() -> None:
    """Among equals this gateway's own, which costs no detour."""
    assert better([AGENT], peer("b", 0)) is None
    assert better([replace(AGENT, running=1)], peer("b", 2), peer("c", 1, 0)) == "c"
    assert better([], peer("b", 3), peer("c", 2)) == "c"
    assert better([replace(AGENT, draining=True)], peer("b", 3)) == "b"
    assert better([OTHER], peer("b", 3)) == "b"


def test_what_was_sent_and_not_told_of_yet_counts() -> None:
    """A gateway does not get all requests of a moment because it had nothing to do before it."""
    busy = replace(AGENT, running=2)
    assert better([busy], peer("b", 0), sent={"b": 1}) == "b"
    assert better([busy], peer("b", 0), sent={"b": 3}) is None
    assert better([busy], peer("b", 0, 0), sent={"b": 3}) == "b"
    assert better([busy], peer("b", 0), sent={"b": 10**6}) is None


def test_where_all_are_full_it_is_the_shortest_queue() -> None:
    """For each answer that can be given at once; this one's among equals."""
    full = replace(AGENT, running=4)
    assert better([full], peer("b", 4), waiting=3) == "b, to wait"
    assert better([full], peer("b", 4, waiting=3), waiting=3) is None
    assert better([full], peer("b", 4, 4, waiting=3), waiting=3) == "b, to wait"
    assert better([], peer("b", 4, waiting=60)) == "b, to wait"


def test_who_has_just_refused_as_full_counts_as_full() -> None:
    """Whatever it had told: the request stays here, goes to a third, or waits there where nobody else can have it."""
    busy, full = replace(AGENT, running=2), replace(AGENT, running=4)
    assert better([busy], peer("b", 0), full={"b"}) is None
    assert better([busy], peer("b", 0), peer("c", 1), full={"b"}) == "c"
    assert better([], peer("b", 0), full={"b"}) == "b, to wait"
    assert better([full], peer("b", 0, waiting=1), full={"b"}) is None


def test_nobody_else_is_asked_for_what_nobody_can_do() -> None:
    """Then this gateway says why; nor who was passed over."""
    assert better([AGENT], peer("b", 0), wish=Wish("none")) is None
    assert better([], peer("b", 0, agent=replace(AGENT, cloud_connected=False))) is None
    assert better([replace(AGENT, running=1)], peer("b", 0), passed_over={"b"}) is None
    assert better([replace(AGENT, running=1)]) is None


def test_a_conversation_goes_on_at_another_gateway() -> None:
    """Where its agent is, while there is room."""
    kept = replace(AGENT, turns=(b"turn",))
    assert better([AGENT], peer("b", 3, agent=kept), wish=Wish("m", turns=(b"turn",))) == "b"
    assert better([AGENT], peer("b", 4, agent=kept), wish=Wish("m", turns=(b"turn",))) is None
