"""The requests that OpenAI's document has as examples, sent to real processes: each is answered as the document says,
or refused by name, and what is refused is written here and in ``docs/api.md``."""

from __future__ import annotations

import re
from typing import Any, Final

import httpx
import pytest
from openai_requests import Example, Refusal, examples, fault

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

USER: Final = {"role": "user", "content": "Hello!"}

NO_PART: Final = Refusal(r"(messages|input)\[0\]\.content\[1\]")
NO_TOOL: Final = Refusal(r"tools\[0\]\.type")
NO_ITEM: Final = Refusal(r"input\[1\]\.type")
NO_PATH: Final = Refusal("", "not_found")
NO_VERB: Final = Refusal("", "method_not_allowed")

REFUSED: Final = {
    "POST chat/completions: Image input": NO_PART,
    "POST responses: Image input": NO_PART,
    "POST responses: File input": NO_PART,
    "POST responses: Web search": NO_TOOL,
    "POST responses: File search": NO_TOOL,
    # Chats are not stored, and models not deleted.
    "GET chat/completions: List Chat Completions": NO_VERB,
    "GET chat/completions/{completion_id}: Get chat completion": NO_PATH,
    "POST chat/completions/{completion_id}: Update chat completion": NO_PATH,
    "DELETE chat/completions/{completion_id}: Delete chat completion": NO_PATH,
    "GET chat/completions/{completion_id}/messages: Get chat messages": NO_PATH,
    "DELETE models/{model}: Delete a fine-tuned model": NO_VERB,
    # Nothing goes on in the background, and nothing is compacted.
    "POST responses/{response_id}/cancel: Cancel a response": Refusal("background", "invalid_value"),
    "POST responses/compact: Compact a response": NO_VERB,
}
"""Examples that are not answered."""

NOT_GONE_ON_WITH: Final = REFUSED | {"POST responses: Web search": NO_ITEM, "POST responses: File search": NO_ITEM}
"""The same where what OpenAI has answered is sent back."""


def sent(http: httpx.Client, example: Example, body: Any) -> httpx.Response:
    """The reply to an example, with a model and a response of ours in place of those that it names."""
    path = example.path.replace("VAR_chat_model_id", "trilby-demo")
    if found := re.search(r"resp_\w+", path):
        kept = http.post("/responses", json={"input": "Hello!", "max_output_tokens": 16}).json()["id"]
        path = path.replace(found.group(), kept)
    own = {**body, "model": "trilby-demo"} if body is not None and "model" in body else body
    return http.request(example.verb, f"/{path}", json=own)


def schema_of(example: Example, body: Any) -> str:
    """The schema of what is said in reply."""
    return example.event if body is not None and body.get("stream") else example.schema


def test_each_example_is_answered_or_refused_by_name(http: httpx.Client) -> None:
    """As it stands in the document, but for names of models and of responses."""
    found = examples()
    assert len(found) >= 25 and len({each.name for each in found}) == len(found)
    faults = {}
    for each in found:
        if wrong := fault(sent(http, each, each.body), schema_of(each, each.body), REFUSED.get(each.name)):
            faults[each.name] = wrong
    assert faults == {}


def gone_on(example: Example) -> Any:
    """An example's request, what OpenAI has answered, what tools gave, and one more turn; None where it is no
    conversation."""
    body, reply = example.body, example.reply
    if body is None or reply is None:
        return None
    if example.path == "chat/completions":
        said = reply["choices"][0]["message"]
        gave = [{"role": "tool", "tool_call_id": each["id"], "content": "Warm."} for each in said.get("tool_calls", ())]
        return {**body, "messages": [*body["messages"], said, *gave, USER]}
    if example.path == "responses":
        given = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        gave = [
            {"type": "function_call_output", "call_id": each["call_id"], "output": "Warm."}
            for each in reply["output"]
            if each["type"] == "function_call"
        ]
        return {**body, "input": [*given, *reply["output"], *gave, USER]}
    return None


def test_what_openai_has_answered_is_gone_on_with(http: httpx.Client) -> None:
    """Its answers and calls are the history of the next request, as clients send it."""
    found = [(each, body) for each in examples() if (body := gone_on(each)) is not None]
    assert len(found) >= 8
    faults = {}
    for each, body in found:
        if wrong := fault(sent(http, each, body), schema_of(each, body), NOT_GONE_ON_WITH.get(each.name)):
            faults[each.name] = wrong
    assert faults == {}
