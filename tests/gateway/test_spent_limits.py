"""Answers of unsaid length under a limit on tokens: they take of it as they come, and end where there is no more."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_streams import stream

from gateway.config import GatewayConfig
from gateway.limits.limiter import AT_ONCE
from wire.request_messages import Accepted, Delta, Done, Finished

LIMIT, PROMPT, EACH = 600, 5, 4
MOST = 2000
"""Tokens that an agent here has to say."""


async def talk(agent: Any, asked: Any) -> None:
    """Say as much as was asked for, a few tokens at a time, all choices in turn."""
    agent.post(Accepted(asked.request, PROMPT))
    most = MOST if asked.max_tokens is None else asked.max_tokens
    for _ in range(0, most, EACH):
        if asked.request in agent.cancelled:
            return
        for index in range(asked.n):
            agent.post(Delta(asked.request, index, "x" * EACH, EACH))
        await asyncio.sleep(0.001)
    for index in range(asked.n):
        agent.post(Finished(asked.request, index, "stop"))
    agent.post(Done(asked.request, PROMPT, most * asked.n))


def spent(usage: Any) -> int:
    """The tokens of an answer, which are within the limit, and as many as it could have."""
    total = usage["total_tokens"]
    assert LIMIT - AT_ONCE - 2 * EACH < total <= LIMIT
    return int(total)


def limiter(gateway: Any) -> Any:
    """What its limits are counted by."""
    return gateway.app.state.desk.reception._limiter


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_ends_where_the_limit_does(serving: Any, connected: Any, chat: Any, path: str) -> None:
    """As though its length were reached; its agent is told to stop, and the next request comes too early."""
    body = chat if "chat" in path else {"prompt": "Hi", "max_tokens": -1}
    async with serving(GatewayConfig(tokens_a_minute=LIMIT)) as gateway, connected(gateway, talk) as agent:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        _, events = await stream(gateway, path, asked)
        assert events[-1] == "[DONE]"
        *chunks, last = map(json.loads, events[:-1])
        total = spent(last["usage"])
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        said = [
            chunk["choices"][0].get("text") or chunk["choices"][0].get("delta", {}).get("content") for chunk in chunks
        ]
        assert len("".join(filter(None, said))) == total - PROMPT
        await gateway.until(lambda: agent.cancelled and not limiter(gateway).open)
        refused = await gateway.http.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["x-ratelimit-remaining-tokens"] == str(LIMIT - total)


async def test_all_choices_of_a_whole_answer_end_there(serving: Any, connected: Any, chat: Any) -> None:
    """Each says that it was cut."""
    config = GatewayConfig(tokens_a_minute=LIMIT)
    async with serving(config) as gateway, connected(gateway, talk):
        reply = (await gateway.http.post("/v1/chat/completions", json={**chat, "n": 2})).json()
        spent(reply["usage"])
        assert [choice["finish_reason"] for choice in reply["choices"]] == ["length", "length"]
        assert all(choice["message"]["content"] for choice in reply["choices"])


async def test_an_answer_within_what_was_reserved_is_whole(serving: Any, connected: Any, chat: Any) -> None:
    """One that said how long it may be gets as much, where the limit has it; what its prompt has more than was thought
    is taken as well, and what it has less is given back."""
    async with serving(GatewayConfig(tokens_a_minute=LIMIT)) as gateway, connected(gateway, talk):
        reply = (await gateway.http.post("/v1/chat/completions", json={**chat, "max_tokens": 580})).json()
        assert reply["choices"][0]["finish_reason"] == "stop" and reply["usage"]["total_tokens"] == 585
        await gateway.until(lambda: not limiter(gateway).open)
        refused = await gateway.http.post("/v1/chat/completions", json={**chat, "max_tokens": 16})
        assert refused.status_code == 429 and refused.headers["x-ratelimit-remaining-tokens"] == "15"
