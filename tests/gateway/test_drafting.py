"""Drafting as clients see it: naming a drafter, and what became of the tokens that were drafted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from websockets.asyncio.client import connect

from service.chat import ChatConfig, answer
from wire.request_messages import Accepted, Delta, Done, Finished, ServedModel

DRAFTING = ServedModel("demo/model", 4096, 1_700_000_000, ["hybrid", "fused", "lookup", "none"])
DETAILS = {"accepted_prediction_tokens": 7, "rejected_prediction_tokens": 3}


async def drafted(agent: Any, asked: Any) -> None:
    """Twelve tokens, for which ten were drafted and seven of those accepted."""
    agent.post(Accepted(asked.request, 5))
    agent.post(Delta(asked.request, 0, "Hello world", 12))
    agent.post(Finished(asked.request, 0, "stop"))
    agent.post(Done(asked.request, 5, 12, 0, 10, 7))


@pytest.fixture
async def drafting(gateway: Any, connected: Any) -> Any:
    """An agent that drafts."""
    async with connected(gateway, drafted, models=(DRAFTING,)) as scripted:
        yield scripted


@pytest.mark.parametrize("endpoint", ["chat/completions", "completions"])
async def test_usage_tells_what_was_drafted(gateway: Any, drafting: Any, chat: Any, endpoint: Any) -> None:
    """Under OpenAI's names, whole and in a stream's last chunk, and OpenAI's own types take it."""
    body = chat if endpoint.startswith("chat") else {"prompt": "Hi"}
    whole = (await gateway.http.post(f"/v1/{endpoint}", json=body)).json()
    assert whole["usage"]["completion_tokens_details"] == DETAILS
    assert whole["usage"]["completion_tokens"] == 12  # Those rejected are no part of the answer.
    (ChatCompletion if endpoint.startswith("chat") else Completion).model_validate(whole, strict=True)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = (await gateway.http.post(f"/v1/{endpoint}", json=body | options)).text.split("\n\n")
    last = json.loads(lines[-3].removeprefix("data: "))
    assert last["usage"]["completion_tokens_details"] == DETAILS
    (ChatCompletionChunk if endpoint.startswith("chat") else Completion).model_validate(last, strict=True)


async def test_openai_python_reads_it(gateway: Any, drafting: Any, chat: Any) -> None:
    """As attributes, and the extra field of a request goes by its ``extra_body``."""
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as api:
        reply = await api.chat.completions.create(**chat, extra_body={"draft": "lookup"})
        assert reply.usage is not None and reply.usage.completion_tokens_details is not None
        assert reply.usage.completion_tokens_details.accepted_prediction_tokens == 7
        assert reply.usage.completion_tokens_details.rejected_prediction_tokens == 3
    assert drafting.asked[0].draft == "lookup"


async def test_several_prompts_add_up(gateway: Any, drafting: Any) -> None:
    """Each is an answer of its own to the agent."""
    reply = (await gateway.http.post("/v1/completions", json={"prompt": ["a", "b", "c"], "draft": "fused"})).json()
    details = {"accepted_prediction_tokens": 21, "rejected_prediction_tokens": 9}
    assert reply["usage"]["completion_tokens_details"] == details
    assert [asked.draft for asked in drafting.asked] == ["fused"] * 3


async def test_where_nothing_was_drafted_nothing_is_said(gateway: Any, agent: Any, chat: Any) -> None:
    """Usage is as it always was, and plain decoding may be asked of an agent that never drafts."""
    reply = (await gateway.http.post("/v1/chat/completions", json=chat | {"draft": "none"})).json()
    assert reply["usage"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert agent.asked[0].draft == "none"
    assert (await gateway.http.get("/state")).json()["agents"][0]["acceptance"] is None


async def test_the_token_socket_has_both(gateway: Any, drafting: Any, chat: Any) -> None:
    """The field and the usage."""
    async with connect(f"{gateway.ws_url}/v1/stream", proxy=None) as websocket:
        for named, last in (("lookup", "done"), ("best", "error"), (5, "error")):
            await websocket.send(json.dumps(chat | {"draft": named}))
            messages = [json.loads(await websocket.recv())]
            while messages[-1]["type"] not in ("done", "error"):
                messages.append(json.loads(await websocket.recv()))
            assert messages[-1]["type"] == last
            if last == "done":
                assert messages[-2]["usage"]["completion_tokens_details"] == DETAILS
            else:
                assert messages[-1]["error"]["param"] == "draft"
    assert [asked.draft for asked in drafting.asked] == ["lookup"]


async def test_an_unknown_drafter_is_refused_at_the_door(gateway: Any, connected: Any, chat: Any) -> None:
    """400, naming those of all agents that serve the model; no agent hears of it."""
    other = ServedModel("demo/model", 4096, 1, ["medusa", "none"])
    foreign = ServedModel("other", 4096, 1, ["adapter"])
    async with (
        connected(gateway, models=(DRAFTING,)) as one,
        connected(gateway, models=(other,)) as two,
        connected(gateway, models=(foreign,)) as three,
    ):
        for named in ("adapter", "x" * 500):
            response = await gateway.http.post("/v1/chat/completions", json=chat | {"draft": named})
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["code"]) == (400, "draft", "invalid_value")
            assert error["message"].endswith("one of: hybrid, fused, lookup, none, medusa")
            assert named[:100] in error["message"] and len(error["message"]) < 300
        assert not one.asked and not two.asked and not three.asked


async def test_agents_that_have_the_drafter_get_the_request(gateway: Any, connected: Any, chat: Any) -> None:
    """However idle the others are; who names none may get anybody."""
    async with connected(gateway) as plain, connected(gateway, drafted, models=(DRAFTING,)) as able:
        for _ in range(3):
            await gateway.http.post("/v1/chat/completions", json=chat | {"draft": "hybrid"})
        assert (len(plain.asked), len(able.asked)) == (0, 3)
        for named in ("", None, "none"):
            await gateway.http.post("/v1/chat/completions", json=chat | {"draft": named})
        assert len(plain.asked) == 3


async def test_who_waits_for_a_drafter_holds_nobody_else_up(
    gateway: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """And is told when the last agent that has it goes."""
    async with connected(gateway, scripts.hang, models=(DRAFTING,), capacity=1) as able, connected(gateway):
        running = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"draft": "fused"}))
        await gateway.until(lambda: able.asked)
        waiting = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"draft": "fused"}))
        await gateway.until(lambda: len(gateway.roster.waiting) == 1)
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
        await able.cut()
        assert (await waiting).json()["error"]["param"] == "draft"
        assert (await running).status_code == 503


async def test_more_accepted_than_proposed_breaks_the_protocol(gateway: Any, connected: Any, chat: Any) -> None:
    """The request ends with an error instead of a negative number."""

    async def boast(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Finished(asked.request, 0, "stop"))
        agent.post(Done(asked.request, 5, 12, 0, 3, 4))

    async with connected(gateway, boast):
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_error")


async def test_operators_see_it(gateway: Any, drafting: Any, chat: Any) -> None:
    """Counters that only grow, and in the state each agent's drafters and acceptance."""
    for _ in range(2):
        await gateway.http.post("/v1/chat/completions", json=chat)
    text = (await gateway.http.get("/metrics")).text
    assert 'trilby_spec_decode_num_draft_tokens_total{model_name="demo/model"} 20.0' in text
    assert 'trilby_spec_decode_num_accepted_tokens_total{model_name="demo/model"} 14.0' in text
    state = (await gateway.http.get("/state")).json()["agents"][0]
    assert state["drafts"] == {"demo/model": ["hybrid", "fused", "lookup", "none"]}
    assert state["acceptance"] == 0.7


async def test_the_terminal_chat_hears_of_it(gateway: Any, drafting: Any, chat: Any) -> None:
    """It asks for the usage, and the text is what it was."""

    def talk() -> tuple[str, dict[str, Any]]:
        usage: dict[str, Any] = {}
        with httpx.Client(base_url=gateway.url + "/v1", trust_env=False) as client:
            text = "".join(said.text for said in answer(client, chat["model"], chat["messages"], ChatConfig(), usage))
        return text, usage

    text, usage = await asyncio.to_thread(talk)
    assert text == "Hello world" and usage["completion_tokens_details"] == DETAILS
