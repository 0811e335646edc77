"""/tokenize, /detokenize and /v1/chat/completions/input_tokens, by an agent that serves the demo model."""

from __future__ import annotations

from typing import Any

import pytest
from agents_here import Served
from checkpoints import DEMO
from transformers import AutoTokenizer

from gateway.openai_schema import MAX_PROMPT_IDS
from wire.request_messages import Accepted, Done, Finished
from wire.text_messages import Tokenize, Tokens

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
TURNS = [{"role": "user", "content": "Hi"}]


async def test_a_tokenizer_is_asked_and_the_answers_are_vllms(served: Served) -> None:
    """With and without /v1; ids that a completion takes, and its prompt has then. Errors are those of requests."""
    oracle: Any = AutoTokenizer.from_pretrained(DEMO)
    chat_ids = oracle.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)
    async with served(DEMO) as http:
        for prefix in ("/v1", ""):
            ids = oracle.encode("One fox.")
            reply = await http.post(f"{prefix}/tokenize", json={"model": "m", "prompt": "One fox."})
            assert reply.json() == {
                "count": len(ids), "max_model_len": reply.json()["max_model_len"], "tokens": ids, "token_strs": None
            }  # fmt: skip
            assert reply.headers["x-request-id"]
            text = (await http.post(f"{prefix}/detokenize", json={"tokens": ids})).json()
            assert text == {"prompt": oracle.decode(ids)}
        named = (await http.post("/tokenize", json=CHAT | {"return_token_strs": True})).json()
        assert (named["tokens"], named["token_strs"]) == (chat_ids, oracle.convert_ids_to_tokens(chat_ids))
        counted = (await http.post("/v1/chat/completions/input_tokens", json=CHAT | {"model": "m"})).json()
        assert counted == {"object": "response.input_tokens", "input_tokens": len(chat_ids)}
        answered = (await http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 2})).json()
        assert answered["usage"]["prompt_tokens"] == counted["input_tokens"]
        asked = {"prompt": [ids, ids[:2]], "max_tokens": 3, "ignore_eos": True, "return_token_ids": True}
        choices = (await http.post("/v1/completions", json=asked)).json()["choices"]
        assert [each["prompt_token_ids"] for each in choices] == [ids, ids[:2]]
        assert [oracle.decode(each["token_ids"]) for each in choices] == [each["text"] for each in choices]
        for path, body, status, param in (
            ("/tokenize", {"prompt": "x " * 9000}, 400, "prompt"),
            ("/tokenize", {"model": "other", "prompt": "x"}, 404, "model"),
            ("/detokenize", {"tokens": [10**6]}, 400, "tokens"),
            ("/detokenize", {"tokens": [1] * 9000}, 400, "tokens"),
            ("/v1/chat/completions/input_tokens", CHAT | {"n": 0}, 400, "n"),
        ):
            refused = await http.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x"} | CHAT, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", CHAT | {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1] * (MAX_PROMPT_IDS + 1)}, "tokens"),
    ],
)
async def test_bad_bodies_never_reach_an_agent(gateway: Any, agent: Any, path: str, body: Any, param: str) -> None:
    """400 that names the member."""
    reply = await gateway.http.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert not agent.asked


async def test_an_agent_that_says_something_else_breaks_the_protocol(gateway: Any, connected: Any) -> None:
    """Text for tokens, or tokens for text: an error of ours, not of the client."""

    async def wrong(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 0))
        agent.post(Finished(asked.request, 0, "stop") if isinstance(asked, Tokenize) else Tokens(asked.request, 0, 1))
        agent.post(Done(asked.request, 0, 0))

    async with connected(gateway, wrong):
        for path, body in (("/tokenize", {"prompt": "x"}), ("/v1/completions", {"prompt": "x"})):
            reply = await gateway.http.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_error")
