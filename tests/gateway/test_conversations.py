"""A conversation goes on at the agent that has its beginning, and nobody meets another's."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations import LOOKED_AT, MOST_TURNS, Conversation, conversation_of
from gateway.parsing import parse
from gateway.policy import Use, Wish, choose
from gateway.registry.registry import AgentRecord
from gateway.request import Ask
from wire.request_messages import ServedModel

KEY = b"k" * 32
TEXT = st.text(max_size=12)
TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), TEXT), min_size=1, max_size=8)


def ask(turns: list[tuple[str, str]], tenant: str = "") -> Ask:
    messages = [{"role": role, "content": text} for role, text in turns]
    return parse("chat.completions", msgspec.json.encode({"messages": messages}), tenant)


@given(TURNS, TURNS)
def test_a_later_turn_is_known_by_an_earlier_one(first: list[tuple[str, str]], more: list[tuple[str, str]]) -> None:
    """As far as is looked; by no other tenant, with no other key, and not by other messages."""
    earlier, later = conversation_of(ask(first), KEY), conversation_of(ask([*first, *more]), KEY)
    assert earlier.whole in later.before and later.whole not in later.before
    assert len(later.before) == min(len(first) + len(more) - 1, LOOKED_AT)
    assert conversation_of(ask(first, "x"), KEY).whole not in later.before
    assert conversation_of(ask(first), b"another").whole not in later.before
    role, text = first[0]
    assert conversation_of(ask([(role, text + "!"), *first[1:]]), KEY).whole not in later.before


def test_what_is_no_conversation_is_not_looked_for() -> None:
    """Prompts, and what would take long to read."""
    completion = parse("completions", b'{"prompt": "Hi"}', "")
    assert conversation_of(completion, KEY) == Conversation()
    assert conversation_of(ask([("user", "x")] * (MOST_TURNS + 1)), KEY) == Conversation()


def test_it_goes_on_where_it_was_if_there_is_room() -> None:
    """At the agent with the latest of its turns, however loaded; where that is full at the least loaded."""
    model = (ServedModel("m", 9, 1),)
    agents = [
        AgentRecord("idle", "a", model, 4),
        AgentRecord("older", "b", model, 4, running=1, turns=(b"1",)),
        AgentRecord("newer", "c", model, 4, running=3, turns=(b"0", b"2")),
    ]
    wish = Wish("m", turns=(b"3", b"2", b"1"))
    assert choose(agents, wish, {}) == Use("newer")
    full = [*agents[:2], msgspec.structs.replace(agents[2], running=4)]
    assert choose(full, wish, {}) == Use("older")
    assert choose(agents, Wish("m"), {}) == Use("idle")


async def test_the_second_turn_goes_to_the_agent_of_the_first(gateway: Any, connected: Any, chat: Any) -> None:
    """While other conversations go to the agent with fewer requests."""
    async with connected(gateway, name="one") as one, connected(gateway, name="two") as two:
        asked = []
        for at in range(3):
            messages = [{"role": "user", "content": f"Hi {at}"}]
            for _ in range(3):
                body = {"model": chat["model"], "messages": messages}
                reply = (await gateway.http.post("/v1/chat/completions", json=body)).json()
                messages = [*messages, reply["choices"][0]["message"], {"role": "user", "content": "And?"}]
            asked.append((len(one.asked), len(two.asked)))
        # Two of the three conversations are at one agent, all three turns of each.
        assert sorted(asked[-1]) == [3, 6] and all(not each % 3 for pair in asked for each in pair)
