"""Each member of a request may be what OpenAI's document says: real processes answer it as the document has it, or
refuse it by name, and what is refused is written here and in ``docs/api.md``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import httpx
import pytest
from openai_requests import Refusal, fault
from openai_values import Values

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

USER: Final = {"role": "user", "content": "Hello!"}
LOGPROBS: Final = "message.output_text.logprobs"


class Body(NamedTuple):
    """Bodies of one endpoint: the names of the schemas of the request, of the reply and of what is streamed, and what
    there is beside the member that is tried."""

    request: str
    reply: str
    event: str
    rest: dict[str, Any]


BODIES: Final = {
    "chat/completions": Body(
        "CreateChatCompletionRequest",
        "CreateChatCompletionResponse",
        "CreateChatCompletionStreamResponse",
        {"messages": [USER], "max_tokens": 1},
    ),
    "completions": Body(
        "CreateCompletionRequest",
        "CreateCompletionResponse",
        "CreateCompletionResponse",
        {"prompt": "Once", "max_tokens": 1},
    ),
    "embeddings": Body("CreateEmbeddingRequest", "CreateEmbeddingResponse", "", {"input": "Once"}),
    "responses": Body(
        "CreateResponse",
        "Response",
        "ResponseStreamEvent",
        {"input": "Hello!", "max_output_tokens": 16, "store": False},
    ),
}

# ---- what is refused -------------------------------------------------------------------------------------------------

FOREIGN_PARTS: Final = {"image_url", "input_audio", "file", "custom"}
ITEMS: Final = {"message", "function_call", "function_call_output", "reasoning"}
PARTS: Final = {"input_text", "output_text", "text", "refusal", "reasoning_text"}
INCLUDED: Final = {LOGPROBS, "reasoning.encrypted_content"}


def kinds_in(value: Any) -> set[str]:
    """The types of all objects in a value."""
    inner = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    found = {kind for each in inner for kind in kinds_in(each)}
    return found | ({str(value["type"])} if isinstance(value, dict) and "type" in value else set())


def is_told(item: Mapping[str, Any]) -> bool:
    """Whether a model here can be told an item of a conversation."""
    parts = [part for name in ("content", "output") for part in item.get(name) or () if isinstance(part, dict)]
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    return kind in ITEMS and all(part["type"] in PARTS for part in parts)


def has_foreign_items(given: Any) -> bool:
    """Whether an input has an item that no model here can be told."""
    return isinstance(given, list) and not all(map(is_told, given))


def is_nameless(given: Any) -> bool:
    """Whether an input has what a tool gave, and does not say in which call."""
    items = given if isinstance(given, list) else []
    return any(each.get("type") == "function_call_output" and each["call_id"] is None for each in items)


def has_foreign_choice(choice: Any) -> bool:
    """Whether a choice names a tool that is no function."""
    return isinstance(choice, dict) and choice["type"] not in ("function", "allowed_tools")


NO_TOOL: Final = Refusal(r"tools\[0\]\.type")
When = Callable[[Any], bool]
REFUSED: Final[dict[str, dict[str, list[tuple[When, Refusal]]]]] = {
    "chat/completions": {
        "messages": [
            (lambda given: bool(kinds_in(given) & FOREIGN_PARTS), Refusal(r"messages\[0\]\.\w+\[0\](\.type)?"))
        ],
        "tools": [(lambda given: "custom" in kinds_in(given), NO_TOOL)],
        "tool_choice": [(has_foreign_choice, Refusal(r"tool_choice\.type"))],
        "function_call": [(lambda given: isinstance(given, dict), Refusal("function_call"))],
        # The document's bounds are those of 64 bits, rounded.
        "seed": [(lambda given: given is not None and abs(given) > 2**63, Refusal("seed", "invalid_value"))],
    },
    "completions": {
        "prompt": [
            (lambda given: given is None, Refusal("prompt", "invalid_type")),
            (lambda given: given in ("", [""]), Refusal(r"prompt(\[0\])?", "invalid_value")),
        ],
        "best_of": [(lambda given: given is not None and given > 1, Refusal("best_of"))],
        "max_tokens": [(lambda given: given == 0, Refusal("max_tokens", "invalid_value"))],
        "suffix": [(bool, Refusal("suffix"))],
    },
    "embeddings": {
        "input": [(lambda given: given in ("", [""]), Refusal(r"input(\[0\])?", "invalid_value"))],
        "dimensions": [(bool, Refusal("dimensions", "invalid_value"))],
    },
    "responses": {
        "input": [
            (has_foreign_items, Refusal(r"input\[0\]\.(type|\w+\[0\])")),
            (is_nameless, Refusal(r"input\[0\]\.call_id", "missing_required_parameter")),
        ],
        "tools": [(lambda given: given[0]["type"] != "function", NO_TOOL)],
        "tool_choice": [(has_foreign_choice, Refusal(r"tool_choice\.type"))],
        "include": [(lambda given: bool(given) and not INCLUDED.issuperset(given), Refusal(r"include\[0\]"))],
        "truncation": [(lambda given: given == "auto", Refusal("truncation"))],
        "background": [(bool, Refusal("background"))],
        "conversation": [(bool, Refusal("conversation"))],
        "prompt": [(bool, Refusal("prompt"))],
    },
}
"""Values that are not answered, by the member whose they are."""


def refusal_of(path: str, member: str, value: Any) -> Refusal | None:
    """What a value is refused with; None: it is not."""
    return next((refusal for when, refusal in REFUSED[path].get(member, ()) if when(value)), None)


# ---- what is sent ----------------------------------------------------------------------------------------------------

FUNCTION: Final = {"type": "function", "function": {"name": "x"}}
NAMED: Final = {"type": "function", "name": "x"}
MODES: Final = ("auto", "required")
GIVEN: Final[dict[str, list[Any]]] = {
    "ChatCompletionAllowedTools": [{"mode": mode, "tools": [FUNCTION]} for mode in MODES],
    "ToolChoiceAllowed": [{"type": "allowed_tools", "mode": mode, "tools": [NAMED]} for mode in MODES],
}
"""Where the document takes any object, and a server one that names a tool."""

ASKED: Final = {"FunctionCallOutputItemParam": ["call_id"]}
"""What a server asks for beside what the document says must be there: in which call a tool gave something."""

BESIDE: Final[dict[str, dict[str, Any]]] = {
    "top_logprobs": {"logprobs": True, "include": [LOGPROBS]},
    "stream_options": {"stream": True},
    "tool_choice": {"tools": [FUNCTION | {"name": "x"}]},
}
"""What a member needs beside it, as each endpoint calls it."""


def body_of(path: str, member: str, value: Any) -> dict[str, Any]:
    """A body with this value."""
    if member in ("messages", "input") and isinstance(value, list) and isinstance(value[0], dict):
        value = [*value, USER]  # Whatever a model is told, it is then the user's turn.
    return {"model": "trilby-demo", **BODIES[path].rest, **BESIDE.get(member, {}), member: value}


@pytest.mark.parametrize("path", BODIES)
def test_each_member_may_be_what_the_document_says(http: httpx.Client, path: str) -> None:
    """Its examples, defaults and bounds, each word of a list, each alternative, and each member of an object."""
    values = Values(GIVEN, ASKED).members(BODIES[path].request)
    del values["model"]  # OpenAI's.
    if path == "responses":
        values["previous_response_id"] = [http.post("/responses", json={"input": "Hello!"}).json()["id"], None]
    faults: dict[str, str] = {}
    refused: set[str] = set()
    for member, value in [(name, each) for name, found in values.items() for each in found]:
        body, refusal = body_of(path, member, value), refusal_of(path, member, value)
        refused |= set() if refusal is None else {member}
        schema = BODIES[path].event if body.get("stream") else BODIES[path].reply
        if value == "base64":
            schema = ""  # Of vectors the document knows numbers alone.
        if wrong := fault(http.post(f"/{path}", json=body), schema, refusal):
            faults[f"{member}: {json.dumps(value)[:300]}"] = wrong
    assert faults == {} and all(values.values())
    assert refused == set(REFUSED[path]), "what is written here as refused was never sent"
