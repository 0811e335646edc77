"""Replies of real processes are as OpenAI publishes them, every member of its type, with few members more."""

from __future__ import annotations

from typing import Any, NamedTuple

import httpx
import pytest
from checkpoints import ROOT
from installation import Installation
from openai.types import Completion, CreateEmbeddingResponse, Decision, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from openai.types.shared import ErrorObject
from openai_judges import members_in_document, objects_in, settled, unknown_members, wrong_by_document

pytestmark = pytest.mark.system

ASKED = [{"role": "user", "content": "How is the weather in Rome?"}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
LONG, SHORT = {"max_tokens": 100}, {"max_tokens": 8}
OURS = {"timings", "system_fingerprint", "store", "name"}
"""Members that OpenAI's types do not have where we have them. Its own server has the two in the middle as well, and its
document wants the last, of a function whose arguments are complete."""


class Case(NamedTuple):
    """A request, and what its reply should be: a kind of OpenAI's package, and a schema of its document."""

    path: str
    body: dict[str, Any]
    kind: Any
    schema: str


def chat(**body: Any) -> Case:
    """A chat, streamed or not."""
    kind, name = (ChatCompletionChunk, "Stream") if body.get("stream") else (ChatCompletion, "")
    return Case("chat/completions", {"messages": ASKED, **body}, kind, f"CreateChatCompletion{name}Response")


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
RESPONSE_TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
COMPLETION = (Completion, "CreateCompletionResponse")
EVENTS = (ResponseStreamEvent, "ResponseStreamEvent")
CASES = {
    "chat": chat(**SHORT),
    "choices and log-probabilities": chat(n=2, logprobs=True, top_logprobs=2, **SHORT),
    "a form": chat(response_format=FORM, **LONG),
    "a call": chat(tools=[TOOL], tool_choice="required", **LONG),
    "stream": chat(stream=True, **SHORT),
    "stream with all": chat(**USAGE, n=2, logprobs=True, top_logprobs=1, **SHORT),
    "streamed call": chat(**USAGE, tools=[TOOL], tool_choice="required", **LONG),
    "text": Case("completions", {"prompt": "Once", **SHORT}, *COMPLETION),
    "texts with log-probabilities": Case(
        "completions",
        {"prompt": ["Once", "Twice"], "logprobs": 2, "n": 2, **SHORT},
        Completion,
        "CreateCompletionResponse",
    ),
    "scores": Case(
        "completions",
        {"prompt": "Once", "logprobs": 1, "echo": True, "max_tokens": 0},
        Completion,
        "CreateCompletionResponse",
    ),
    "streamed text": Case("completions", {"prompt": "Once", **USAGE, **SHORT}, *COMPLETION),
    "response": Case("responses", {"input": "Hi", "max_output_tokens": 16}, Response, "Response"),
    "response that calls": Case(
        "responses", {"input": ASKED, "tools": [RESPONSE_TOOL], "tool_choice": "required"}, Response, "Response"
    ),
    "streamed response": Case(
        "responses",
        {"input": "Hi", "stream": True, "max_output_tokens": 16},
        *EVENTS,
    ),
    "streamed response that calls": Case(
        "responses",
        {"input": ASKED, "stream": True, "tools": [RESPONSE_TOOL], "tool_choice": "required"},
        ResponseStreamEvent,
        "ResponseStreamEvent",
    ),
    "vectors": Case("embeddings", {"input": ["a", "b"]}, CreateEmbeddingResponse, "CreateEmbeddingResponse"),
    "decisions": Case(
        "decisions",
        {
            "input": "A fox.",
            "questions": [
                {"type": "predicate", "instructions": "Is it a fox?"},
                {"type": "choice", "instructions": "What is it?", "choices": [{"value": "fox"}, {"value": "owl"}]},
                {"type": "score", "instructions": "How big is it?", "levels": [{"label": "small"}, {"label": "big"}]},
            ],
        },
        Decision,
        "",
    ),
}


def replies(installation: Installation, case: Case) -> list[Any]:
    """All that is said in answer: one object, or those of a stream."""
    body = {"model": "trilby-demo", **case.body}
    reply = httpx.post(f"{installation.base}/{case.path}", json=body, timeout=60, trust_env=False)
    assert reply.status_code == 200, reply.text
    told = objects_in(reply)
    assert len(told) > 2 if body.get("stream") else len(told) == 1
    return told


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_replies_are_of_the_types_of_openais_own_package(installation: Installation, case: Case) -> None:
    """Strictly: no number as a text, nothing left out; and no member that it does not know but ours."""
    for reply in replies(installation, case):
        assert unknown_members(case.kind, settled(reply)) <= OURS


DOCUMENTED = {name: case for name, case in CASES.items() if case.schema}


@pytest.mark.parametrize("case", DOCUMENTED.values(), ids=DOCUMENTED.keys())
def test_replies_obey_openais_document(installation: Installation, case: Case) -> None:
    """With all members that it requires, null where there is nothing."""
    for reply in replies(installation, case):
        assert wrong_by_document(case.schema, settled(reply)) == []


def test_models_and_what_is_kept_of_a_response(installation: Installation) -> None:
    """The lists and each of their members; what was said is there again, and gone once it is deleted."""
    with httpx.Client(base_url=installation.base, timeout=60, trust_env=False) as here:
        models = here.get("/models").json()
        assert models["object"] == "list" and models["data"]
        for model in (*models["data"], here.get("/models/trilby-demo").json()):
            assert unknown_members(Model, model) <= {"tasks", "max_model_len", "groups", "drafts", "t_max_s"}
        made = here.post("/responses", json={"input": "Hi", "max_output_tokens": 16}).json()
        assert unknown_members(Response, here.get(f"/responses/{made['id']}").json()) <= OURS
        items = here.get(f"/responses/{made['id']}/input_items").json()
        assert not unknown_members(ResponseItemList, items)
        gone = here.delete(f"/responses/{made['id']}").json()
        assert gone == {"id": made["id"], "object": "response", "deleted": True}
        assert here.get(f"/responses/{made['id']}").status_code == 404


ERRORS: dict[str, tuple[str, str, Any, int]] = {
    "no JSON": ("POST", "chat/completions", b"{", 400),
    "a type": ("POST", "chat/completions", {"messages": "Hi"}, 400),
    "a value": ("POST", "chat/completions", {"messages": ASKED, "temperature": 9}, 400),
    "a form": ("POST", "completions", {"prompt": "x", "guided_regex": "("}, 400),
    "too long": ("POST", "completions", {"prompt": "x " * 20_000}, 400),
    "a model": ("POST", "chat/completions", {"model": "nobody", "messages": ASKED}, 404),
    "a place": ("GET", "nowhere", None, 404),
    "a verb": ("DELETE", "chat/completions", None, 405),
    "a response": ("GET", "responses/resp_none", None, 404),
    "no question": ("POST", "decisions", {"input": "x", "questions": []}, 400),
    "no input": ("POST", "embeddings", {"input": []}, 400),
}


@pytest.mark.parametrize(("verb", "path", "body", "status"), ERRORS.values(), ids=ERRORS.keys())
def test_refusals_are_errors_as_openai_has_them(
    installation: Installation, verb: str, path: str, body: Any, status: int
) -> None:
    """With all four members, and nothing else; by the document too, where it is at hand."""
    sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    headers = {"content-type": "application/json"}
    reply = httpx.request(verb, f"{installation.base}/{path}", **sent, headers=headers, timeout=60, trust_env=False)
    assert reply.status_code == status
    told = reply.json()
    assert told.keys() == {"error"} and told["error"].keys() == {"message", "type", "param", "code"}
    assert not unknown_members(ErrorObject, told["error"])


def test_a_refusal_obeys_openais_document(installation: Installation) -> None:
    """By its schema of errors."""
    reply = httpx.post(f"{installation.base}/chat/completions", json={"messages": "Hi"}, timeout=60, trust_env=False)
    assert wrong_by_document("ErrorResponse", reply.json()) == []


def test_the_judges_see_what_is_wrong(installation: Installation) -> None:
    """A reply with a member of another type, one too few, or one too many is told from a good one."""
    [good] = replies(installation, CASES["chat"])
    assert unknown_members(ChatCompletion, {**good, "new": 1}) - OURS == {"new"}
    for wrong in ({**good, "created": "now"}, {name: each for name, each in good.items() if name != "choices"}):
        with pytest.raises(ValueError, match="1 validation error"):
            unknown_members(ChatCompletion, wrong)
    silent = {**good, "choices": [{name: each for name, each in good["choices"][0].items() if name != "logprobs"}]}
    assert wrong_by_document("CreateChatCompletionResponse", silent) != []


REQUESTS = ["CreateChatCompletionRequest", "CreateCompletionRequest", "CreateEmbeddingRequest", "CreateResponse"]


@pytest.mark.parametrize("schema", REQUESTS)
def test_every_member_of_a_request_is_spoken_of(schema: str) -> None:
    """What OpenAI's document lets a client send is in our page of the API: done, ignored or refused."""
    said = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    silent = {name for name in members_in_document(schema) if f"`{name}`" not in said and f"`{name}." not in said}
    assert silent == set()
