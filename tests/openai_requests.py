"""The requests that OpenAI's OpenAPI document has as examples, and how a reply to a request of it is judged."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import httpx
from openai_judges import objects_in, published, settled, wrong_by_document

HOST: Final = "https://api.openai.com/v1/"
SERVED: Final = ("chat/completions", "completions", "embeddings", "models", "responses")
"""What the paths begin with whose examples are sent; all of it, or some of it, is served here."""


class Example(NamedTuple):
    """A request of the document.

    Attributes:
        name: its verb, its path with the names of what is left open there, and its title.
        path: below /v1, as the example has it. body: None where there is none.
        schema: of the reply. event: of each object of a streamed one; both empty where the document names none.
        reply: OpenAI's own, None where the document has it in no JSON.
    """

    name: str
    verb: str
    path: str
    body: Any
    schema: str
    event: str
    reply: Any


def examples() -> list[Example]:
    """Those of the paths that are served, but for the beta's, which are the same again."""
    found = []
    for place, operations in published()["paths"].items():
        path = place.removeprefix("/")
        if "?" in path or not path.startswith(SERVED):
            continue
        for operation in operations.values():
            meta = operation.get("x-oaiMeta", {})
            listed = meta.get("examples", [])
            for each in listed if isinstance(listed, list) else [listed]:
                verb, sent, body = _sent(each["request"]["curl"])
                name = f"{verb} {path}: {each.get('title', meta['name'])}"
                found.append(Example(name, verb, sent, body, *_schemas(operation), json_in(each.get("response"))))
    return found


def _sent(curl: str) -> tuple[str, str, Any]:
    """What a command line sends: verb, path below /v1 and body."""
    words = shlex.split(re.sub(r"\\\s", " ", curl))  # Lines go on behind a backslash.
    [url] = [word for word in words if word.startswith(HOST)]
    body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
    verb = words[words.index("-X") + 1] if "-X" in words else "GET" if body is None else "POST"
    return verb, url.removeprefix(HOST), body


def _schemas(operation: Mapping[str, Any]) -> tuple[str, str]:
    """The names of the schemas of a reply and of what is streamed."""
    content = operation["responses"]["200"].get("content", {})
    whole, streamed = (
        content.get(kind, {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
        for kind in ("application/json", "text/event-stream")
    )
    return whole, streamed


def json_in(text: str | None) -> Any:
    """What a text of the document says in JSON; None where it is none."""
    try:
        return json.loads(text or "")
    except ValueError:
        return None


class Refusal(NamedTuple):
    """An error of a client: its member, as an expression, and its code."""

    param: str
    code: str = "unsupported_value"


def fault(reply: httpx.Response, schema: str, refusal: Refusal | None) -> str:
    """What is wrong with a reply; empty: nothing.

    Args:
        schema: of what it says; empty: anything.
        refusal: what it has to be; None: no error.
    """
    if refusal is None:
        if reply.status_code != 200:
            return f"{reply.status_code}: {reply.text[:300]}"
        objects = objects_in(reply) if schema else []
        return "; ".join(wrong for each in objects for wrong in wrong_by_document(schema, settled(each)))
    if not 400 <= reply.status_code < 500:
        return f"no refusal: {reply.status_code}: {reply.text[:300]}"
    if wrongs := wrong_by_document("ErrorResponse", reply.json()):
        return "; ".join(wrongs)
    error = reply.json()["error"]
    right = re.fullmatch(refusal.param, error["param"] or "") and error["code"] == refusal.code
    return "" if right else f"another refusal: {reply.text[:300]}"
