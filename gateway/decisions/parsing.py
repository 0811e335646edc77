"""From the bytes of a request body to a ``DecisionAsk``, or a ``RequestError`` that names the member at fault. Pure.

Where OpenAI leaves room: what came from tools is told as text, since not every chat template knows tools; messages of
one role in a row become one; a part may be of any kind that has text, whoever's message it is in.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gateway.decisions.ask import DecisionAsk
from gateway.decisions.schema import Choice, DecisionBody, Item, Part
from gateway.decisions.wording import question_of
from gateway.members import MAX_SHOWN, bad, decoded, strings_in
from gateway.openai_schema import MAX_PART_STRINGS, MAX_PARTS, MAX_TURNS
from gateway.parsing import decoded_body
from wire.text_messages import ChatTurn

MAX_JSON_BYTES: Final = 256 * 2**10
MAX_JSON_DEPTH: Final = 32
MAX_JSON_VALUES: Final = 10_000
"""Of a part of JSON. The three numbers are OpenAI's."""

ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}

BETWEEN: Final = "\n\n"
"""Between what is joined to one message, and before a question."""

_BODY: Final = msgspec.json.Decoder(DecisionBody)
_TEXT: Final = msgspec.json.Decoder(str)
_ITEMS: Final = msgspec.json.Decoder(Annotated[list[Item], Meta(min_length=1, max_length=MAX_TURNS)])
_PARTS: Final = msgspec.json.Decoder(Annotated[list[Part], Meta(min_length=1, max_length=MAX_PARTS)])
_JSON: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(dict[str, Any] | list[dict[str, Any]])


def parse_decision(body: bytes, tenant: str = "") -> DecisionAsk:
    """Read the request body of a tenant.

    Raises:
        RequestError: it is not JSON, or a member is missing, of the wrong type or out of range.
    """
    fields = decoded_body(_BODY, body)
    asked = []
    for at, each in enumerate(fields.questions):
        param = f"questions[{at}]"
        if isinstance(each, Choice):
            values = [(type(option.value), option.value) for option in each.choices]
            if len(set(values)) < len(values):
                raise bad(f"{param}.choices", "two choices are the same: each is there once")
        asked.append(question_of(each, _text(each.instructions, f"{param}.instructions")))
    return DecisionAsk(fields.model, _turns(fields.input), tuple(fields.questions), tuple(asked), tenant)


def _turns(raw: msgspec.Raw) -> tuple[ChatTurn, ...]:
    """The conversation that every question follows; its last turn is the user's, and questions go on in it."""
    if bytes(raw).startswith(b'"'):
        said = [("user", _text(raw, "input"))]
    else:
        said, calls = [], dict[str, str]()
        for at, item in enumerate(decoded(raw, _ITEMS, "input")):
            said.append(_said(item, f"input[{at}]", calls))
    joined: list[tuple[str, list[str]]] = []
    for role, text in said:
        if joined and joined[-1][0] == role:
            joined[-1][1].append(text)
        else:
            joined.append((role, [text]))
    if joined[-1][0] != "user":
        joined.append(("user", []))
    turns = [ChatTurn(role, BETWEEN.join(texts)) for role, texts in joined]
    last = turns[-1].content
    return (*turns[:-1], ChatTurn("user", last + BETWEEN if last else ""))


def _said(item: Item, at: str, calls: dict[str, str]) -> tuple[str, str]:
    """Who says an item, and its text. calls: the names of the tools called so far, by the call's id."""
    if item.type == "message":
        if item.role not in ROLES:
            raise bad(f"{at}.role", f"a message's role is one of {', '.join(ROLES)}")
        return ROLES[item.role], _text(item.content, f"{at}.content")
    if item.type in ("function_call", "custom_tool_call"):
        if not item.name or not item.call_id:
            missing = "call_id" if item.name else "name"
            raise bad(f"{at}.{missing}", f"a call has a '{missing}'", "missing_required_parameter")
        calls[item.call_id] = item.name
        return "assistant", f"{item.name}({item.arguments or item.input})"
    if item.type in ("function_call_output", "custom_tool_call_output"):
        if item.call_id not in calls:
            raise bad(f"{at}.call_id", "there is no call of this 'call_id' before")
        return "user", f"{calls[item.call_id]} gave: {_text(item.output, f'{at}.output')}"
    told = f"an item of type '{item.type[:MAX_SHOWN]}' is not supported: it is a message, a call, or what one gave"
    raise bad(f"{at}.type", told, "unsupported_value")


def _text(raw: msgspec.Raw, param: str) -> str:
    """A text, or the text of its parts; never an empty one."""
    data = bytes(raw)
    if data.startswith(b"["):
        if strings_in(data) > MAX_PART_STRINGS:
            raise bad(param, f"more than {MAX_PARTS} parts, or parts with too many members")
        parts = decoded(raw, _PARTS, param)
        text = "\n".join(_part(part, f"{param}[{at}]") for at, part in enumerate(parts))
    else:
        text = decoded(raw, _TEXT, param)
    if not text:
        raise bad(param, f"'{param}' is empty")
    return text


def _part(part: Part, at: str) -> str:
    if part.type == "input_json":
        data = decoded(part.data, _JSON, f"{at}.data", MAX_JSON_BYTES)
        if _values(data, MAX_JSON_DEPTH) > MAX_JSON_VALUES:
            told = f"JSON has at most {MAX_JSON_DEPTH} levels and {MAX_JSON_VALUES} values"
            raise bad(f"{at}.data", told)
        return msgspec.json.encode(data).decode()
    member = "refusal" if part.type == "refusal" else "text"
    if part.type not in ("input_text", "output_text", "text", "refusal"):
        told = f"parts of type '{part.type[:MAX_SHOWN]}' are not supported, only text and JSON: leave it out"
        raise bad(f"{at}.type", told, "unsupported_value")
    if (text := getattr(part, member)) is None:
        raise bad(f"{at}.{member}", f"a part of type '{part.type}' has a '{member}'", "missing_required_parameter")
    return str(text)


def _values(data: object, levels: int) -> float:
    """How many values there are, containers among them; infinitely many where they go deeper than ``levels``."""
    if not isinstance(data, (dict, list)):
        return 1
    if not levels:
        return float("inf")
    return 1 + sum(_values(each, levels - 1) for each in (data.values() if isinstance(data, dict) else data))
