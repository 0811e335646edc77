"""The scores of a prompt's tokens as clients see them: as OpenAI's completions had them, and as vLLM has them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect

from gateway import answer as gateway_answer
from gateway.likelihoods import prompt_logprob
from wire.request_messages import (
    Accepted,
    Alternative,
    Delta,
    Done,
    Finished,
    PromptToken,
    Scored,
    ServedModel,
    TokenLogprob,
)


def word(text: str, token: int, logprob: float) -> Alternative:
    return Alternative(text, logprob, text.encode(), token)


PIECES = (
    ("", [PromptToken(word("<s>", 1, 0.0), 0, 0, [])]),
    ("Say ", [PromptToken(word("Say", 7, -1.0), 1, 0, [word("Say", 7, -1.0)]),
              PromptToken(word(" ", 8, -3.0), 4, 3, [word("y", 9, -0.5)])]),
    ("it", [PromptToken(word("it", 6, float("-inf")), 9, 4, [word("me", 5, -0.25)])]),
)  # fmt: skip
LOGPROBS: dict[str, list[Any]] = {
    "tokens": ["<s>", "Say", " ", "it", "!"],
    "token_logprobs": [None, -1.0, -3.0, -9999.0, -0.125],
    "top_logprobs": [None, {"Say": -1.0}, {"y": -0.5, " ": -3.0}, {"me": -0.25, "it": -9999.0}, {"!": -0.125}],
    "text_offset": [0, 0, 3, 4, 6],
}
PROMPT_LOGPROBS = [
    None,
    {"7": {"logprob": -1.0, "rank": 1, "decoded_token": "Say"}},
    {"8": {"logprob": -3.0, "rank": 4, "decoded_token": " "}, "9": {"logprob": -0.5, "rank": 1, "decoded_token": "y"}},
    {"6": {"logprob": -9999.0, "rank": 9, "decoded_token": "it"},
     "5": {"logprob": -0.25, "rank": 1, "decoded_token": "me"}},
]  # fmt: skip


async def scores(agent: Any, asked: Any) -> None:
    """Scores of a prompt of four tokens for each choice, its text where it is echoed, and one token more."""
    agent.post(Accepted(asked.request, 4))
    for index in range(asked.n):
        for text, tokens in PIECES:
            agent.post(Scored(asked.request, index, text if asked.echo else "", list(tokens)))
        told = None if asked.logprobs is None else [TokenLogprob(word("!", 3, -0.125), [])]
        if asked.max_tokens:
            agent.post(Delta(asked.request, index, "!", 1, told))
        agent.post(Finished(asked.request, index, "length"))
    agent.post(Done(asked.request, 4, asked.n if asked.max_tokens else 0))


async def test_an_echoed_prompt_has_its_scores(gateway: Any, connected: Any) -> None:
    """In OpenAI's four lists, null first, before those of the answer, for every choice."""
    async with connected(gateway, scores):
        body = {"prompt": "Say it", "echo": True, "logprobs": 1, "max_tokens": 1, "n": 2}
        reply = (await gateway.http.post("/v1/completions", json=body)).json()
        assert reply["choices"] == [
            {"text": "Say it!", "index": at, "logprobs": LOGPROBS, "finish_reason": "length"} for at in range(2)
        ]
        reply = (await gateway.http.post("/v1/completions", json=body | {"max_tokens": 0, "n": 1})).json()
        only = {name: each[:-1] for name, each in LOGPROBS.items()}
        assert (reply["choices"][0]["text"], reply["choices"][0]["logprobs"]) == ("Say it", only)


async def test_a_stream_has_the_same(gateway: Any, connected: Any) -> None:
    """Piece by piece; a token without text comes with the next that has some."""
    async with connected(gateway, scores):
        body = {"prompt": "Say it", "echo": True, "logprobs": 1, "max_tokens": 1, "stream": True}
        async with gateway.http.stream("POST", "/v1/completions", json=body) as response:
            lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
    assert [each["text"] for each in choices] == ["Say ", "it", "!", ""]
    for name, told in LOGPROBS.items():
        assert [value for each in choices for value in (each["logprobs"] or {}).get(name, [])] == told


async def test_prompt_logprobs_are_as_at_vllm(gateway: Any, connected: Any, chat: Any) -> None:
    """A member of each choice of a completion, and of a chat's reply, and of neither where nobody asked."""
    async with connected(gateway, scores):
        body = {"prompt": "Say it", "prompt_logprobs": 1, "max_tokens": 1, "logprobs": 1}
        [choice] = (await gateway.http.post("/v1/completions", json=body)).json()["choices"]
        assert (choice["text"], choice["prompt_logprobs"]) == ("!", PROMPT_LOGPROBS)
        assert choice["logprobs"]["tokens"] == ["!"]
        reply = (await gateway.http.post("/v1/chat/completions", json=chat | {"prompt_logprobs": 1, "n": 2})).json()
        assert reply["prompt_logprobs"] == PROMPT_LOGPROBS
        assert "prompt_logprobs" not in reply["choices"][0]


async def test_more_scores_than_may_be_are_refused_when_they_come(
    gateway: Any, connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a text nobody knows its tokens beforehand: the answer has its status yet, and says what to do."""
    monkeypatch.setattr(gateway_answer, "MAX_WHOLE_LOGPROBS", 5)
    async with connected(gateway, scores):
        body = {"prompt": "Say it", "echo": True, "logprobs": 1, "max_tokens": 1}
        reply = await gateway.http.post("/v1/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")
        assert "fewer prompts" in reply.json()["error"]["message"]


async def test_who_does_not_score_is_not_asked_to(gateway: Any, connected: Any, chat: Any) -> None:
    """Agents from before would answer without a word of scores: others get the request, or it is refused by the
    member that asked for them. Everything else they answer."""
    body = {"prompt": "Say it", "max_tokens": 1, "prompt_logprobs": 1}
    async with connected(gateway, models=(ServedModel("demo/model", 4096, 1),)) as before:
        for path, asked, param in (
            ("/v1/completions", body, "prompt_logprobs"),
            ("/v1/completions", {"prompt": "Say it", "echo": True, "logprobs": 1}, "logprobs"),
            ("/v1/chat/completions", chat | {"prompt_logprobs": 1}, "prompt_logprobs"),
        ):
            reply = await gateway.http.post(path, json=asked)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"], error["code"]) == (400, param, "unsupported_value")
            assert "how likely a prompt is" in error["message"]
        assert not before.asked
        assert (await gateway.http.post("/v1/completions", json={"prompt": "Say it"})).status_code == 200
        async with connected(gateway, scores) as able:
            assert (await gateway.http.post("/v1/completions", json=body)).json()["choices"][0]["prompt_logprobs"]
        assert len(before.asked) == len(able.asked) == 1


async def test_a_token_socket_names_the_member_that_asked(gateway: Any, agent: Any, chat: Any) -> None:
    """Scores of prompts are told over HTTP only."""
    async with connect(f"{gateway.ws_url}/v1/stream", proxy=None) as websocket:
        for asked, param in (
            (chat | {"prompt_logprobs": 1}, "prompt_logprobs"),
            ({"prompt": "x", "echo": True, "logprobs": 1}, "logprobs"),
        ):
            await websocket.send(json.dumps(asked))
            assert json.loads(await websocket.recv())["error"]["param"] == param


def test_a_token_is_told_once() -> None:
    """Its own entry comes first, with its own rank, though it is among the likeliest too."""
    same = word("a", 4, -1.0)
    told = prompt_logprob(PromptToken(same, 2, 0, [word("b", 5, -0.5), same]))
    assert told is not None and list(told) == ["4", "5"] and told["4"].rank == 2
    assert msgspec.to_builtins(told["5"]) == {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
