"""Calls that the demo model is forced to make: by any drafter the same, with all that a request may say beside."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from checkpoints import DEMO
from clouds import local_middle
from samples import sample
from served_chains import served

from device_agent.answering.answer import ServedChain, answer
from device_agent.answering.dialect.dialect import Dialect
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import Drafters
from wire.errors import SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Calling, ChatTurn, Delta, Finished, Generate, Rendering, Sampling, Tool, ToolCall

CITY = {"enum": ["Oslo", "Rome"]}
SCHEMA = {"type": "object", "properties": {"city": CITY, "days": {"type": "integer", "minimum": 1, "maximum": 9}}}
TOOLS = [
    Tool("weather", "Says the weather.", json.dumps(SCHEMA | {"required": ["city", "days"]}), True, "tools[0]"),
    Tool("time", "Says the time.", "", False, "tools[1]"),
]
ASKED = [ChatTurn("user", "How is the weather in Rome?")]
ANY, NAMED = Calling(forced=True), Calling(forced=True, name="weather", parallel=False)
GREEDY, SAMPLED = Sampling(temperature=0.0), Sampling(temperature=1.0, seed=5)


@pytest.fixture
async def model(drafters: Drafters) -> AsyncIterator[ServedChain]:
    """The demo model, its layers here."""
    compute = Compute()
    async with served(local_middle(DEMO, 2, 0, compute), drafters, compute=compute) as chain:
        yield chain


async def ask(model: ServedChain, calling: Calling | None, **changed: Any) -> tuple[list[Any], list[str]]:
    """The calls of each choice, by name and arguments, its text last; and why each ended."""
    usual: dict[str, Any] = {
        "prompt": ASKED,
        "max_tokens": 200,
        "sampling": GREEDY,
        "rendering": Rendering(tools=TOOLS),
        "draft": "none",
    }
    request = Generate(1, "id", "demo", calling=calling, thoughts=True, **(usual | changed))
    said: list[AnyMessage] = []
    await answer(model, request, said.append)
    calls: list[list[list[str]]] = [[] for _ in range(request.n)]
    texts, reasons = [""] * request.n, [""] * request.n
    tokens = 0
    for message in said:
        if isinstance(message, Delta):
            texts[message.index] += message.text
            tokens += message.tokens
            if (piece := message.call) is None:
                continue
            if piece.id:
                assert piece.at == len(calls[message.index])
                calls[message.index].append([piece.name, ""])
            calls[message.index][piece.at][1] += piece.arguments
        elif isinstance(message, Finished):
            reasons[message.index] = message.reason
    assert tokens == said[-1].completion_tokens  # type: ignore[union-attr]
    return [[*each, text] for each, text in zip(calls, texts, strict=True)], reasons


def check(calls: list[Any]) -> None:
    """Only calls were made, each with arguments that its schema has."""
    *made, text = calls
    assert made and text == ""
    for name, arguments in made:
        found = json.loads(arguments)
        if name == "weather":
            assert found["city"] in CITY["enum"] and 1 <= found["days"] <= 9 and set(found) == {"city", "days"}
        else:
            assert name == "time" and found == {}


@pytest.mark.slow
async def test_forced_calls_are_made_and_drafts_change_nothing(model: ServedChain) -> None:
    """Any tool and a named one; several choices, seeds, stop texts that stand in calls, log-probabilities; by drafts of
    the text and of the model itself the same."""
    cases: list[tuple[Calling, dict[str, Any]]] = [
        (NAMED, {}),
        (ANY, {"n": 2, "sampling": SAMPLED}),
        (Calling(forced=True, parallel=False), {"stop": ["weather", "{", "\n"], "logprobs": 1}),
    ]
    for calling, more in cases:
        plain, reasons = await ask(model, calling, **more)
        assert reasons == ["tool_calls"] * more.get("n", 1)
        for calls in plain:
            check(calls)
            assert len(calls) == 2 or calling.parallel
        for draft in ("lookup", "itself"):
            assert await ask(model, calling, **more, draft=draft) == (plain, reasons)
    assert (await ask(model, NAMED))[0][0][0][0] == "weather"


async def test_a_call_that_is_cut_off_says_so(model: ServedChain) -> None:
    """At its limit: the reason is the length, and what came of it is told."""
    [[[name, arguments], text]], reasons = await ask(model, NAMED, max_tokens=30)
    assert (name, text, reasons) == ("weather", "", ["length"]) and arguments.startswith("{")


async def test_a_model_that_knows_no_tools_answers_as_without(model: ServedChain) -> None:
    """The demo model calls none of its own accord: with tools offered it says what it says without any."""
    free = await ask(model, Calling(), max_tokens=24)
    assert free == await ask(model, None, max_tokens=24, rendering=Rendering()) and free[1][0] in ("stop", "length")
    assert free[0][0][0]


async def test_what_a_tool_gave_is_told_and_the_conversation_goes_on(model: ServedChain) -> None:
    """The turns behind a call are answered as they would be alone, on top of what was kept of it, and with what the
    tool gave: another result is another prompt."""
    [[[name, arguments], _]], _ = await ask(model, NAMED, tenant="a")
    called = ChatTurn("assistant", "", tool_calls=[ToolCall("call_1", name, arguments)])
    turns = [*ASKED, called, ChatTurn("tool", "It is warm.", tool_call_id="call_1")]
    known = [
        tuple(model.tokenizer.chat([*turns[:2], ChatTurn("tool", gave)])) for gave in ("It is warm.", "It is cold.")
    ]
    assert len(set(known)) == 2
    for calling in (None, ANY):
        alone = await ask(model, calling, prompt=turns, max_tokens=40)
        assert await ask(model, calling, prompt=turns, max_tokens=40, tenant="a") == alone


async def test_without_a_tokenizer_that_is_known_calls_cannot_be_forced(model: ServedChain) -> None:
    """A refusal that names the member; calls that nobody forces need no grammar."""
    blind = replace(model, grammars=None)
    with pytest.raises(SessionFailed) as caught:
        await ask(blind, NAMED)
    assert caught.value.param == "tool_choice"
    assert (await ask(blind, Calling(), max_tokens=4))[1] == ["length"]


@pytest.mark.parametrize("name", sample(["deepseek_v3", "deepseek_v31", "qwen3_coder", "glm45"], "deepseek_v31 glm45"))
async def test_calls_are_forced_in_every_way_of_writing_them(
    model: ServedChain, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whole and as drafts have them; arguments that stand between tags are told as JSON all the same."""
    monkeypatch.setattr(model.tokenizer, "dialect", Dialect.of("", name))
    plain, reasons = await ask(model, NAMED)
    check(plain[0])
    assert reasons == ["tool_calls"] and plain[0][0][0] == "weather"
    assert await ask(model, NAMED, draft="itself") == (plain, reasons)
    [calls], _ = await ask(model, Calling(forced=True, parallel=False), sampling=SAMPLED)
    check(calls)
