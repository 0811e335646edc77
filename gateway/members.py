"""Members of a request body that are read apart from it, and the errors that name a member. Pure.

What may be a long list is kept raw by the body's decoder. Here it is looked at before it is decoded: its kind by its
first member, its length by its bytes. Both are cheap, and a list that is too long never becomes a million objects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar, Union

import msgspec

from gateway import openai_schema as schema
from gateway.errors import RequestError
from gateway.prompt_sizes import Prompt
from wire.text_messages import ToolCall

Value = TypeVar("Value")

_TOKEN_ID: Final = re.compile(r"[0-9]{1,10}")
_PATH: Final = re.compile(r"([A-Za-z0-9_.\[\]]*)`")
_MISSING: Final = re.compile(r"Object missing required field `([a-z_]*)`")

_FIRST: Final = re.compile(rb"\[[ \t\r\n]*(.)", re.DOTALL)
_PLACE: Final = re.compile(r"prompt(?:\[[0-9]+\])?")

REFUSAL: Final = "refusal"
"""A part of an assistant's message with the text of that name."""

MAX_SHOWN: Final = 40
"""Characters of a client's own word in an error."""

_TEXT: Final = msgspec.json.Decoder(str)
_TEXTS: Final = msgspec.json.Decoder(list[str])
_IDS: Final = msgspec.json.Decoder(schema.TokenIds)
_LISTS: Final = msgspec.json.Decoder(list[schema.TokenIds])
_STOPS: Final[msgspec.json.Decoder[str | list[str] | None]] = msgspec.json.Decoder(schema.StopTexts)
_STOP_IDS: Final[msgspec.json.Decoder[list[int] | None]] = msgspec.json.Decoder(schema.StopIds)
_BAD_WORDS: Final[msgspec.json.Decoder[list[str] | None]] = msgspec.json.Decoder(schema.BadWords)
_ALLOWED_IDS: Final[msgspec.json.Decoder[list[int] | None]] = msgspec.json.Decoder(schema.AllowedIds)
_OBJECT: Final[msgspec.json.Decoder[dict[str, Any] | None]] = msgspec.json.Decoder(Union[dict[str, Any], None])
_LOGIT_BIAS: Final[msgspec.json.Decoder[dict[str, float] | None]] = msgspec.json.Decoder(schema.LogitBias)
_CALLED: Final[msgspec.json.Decoder[list[schema.Called] | None]] = msgspec.json.Decoder(schema.CalledList)
_CONTENT: Final[msgspec.json.Decoder[schema.Content]] = msgspec.json.Decoder(schema.Content)


def whole(value: float | None, param: str) -> int | None:
    """Read a whole number that may be written with a point."""
    if isinstance(value, float) and not value.is_integer():
        raise bad(param, f"'{param}' is a whole number", "invalid_type")
    return None if value is None else int(value)


def stop_texts(raw: msgspec.Raw, param: str) -> list[str]:
    """Read one text or several; an empty one stops nothing."""
    stop = decoded(raw, _STOPS, param, schema.MAX_STOP_BYTES)
    if not isinstance(stop, str):
        return stop or []
    if len(stop) > schema.MAX_STOP_CHARACTERS:
        raise bad(param, f"a stop text has 1 to {schema.MAX_STOP_CHARACTERS} characters")
    return [stop] if stop else []


def stop_ids(raw: msgspec.Raw, param: str) -> list[int]:
    """Read a list of token ids."""
    return decoded(raw, _STOP_IDS, param, schema.MAX_STOP_ID_BYTES) or []


def bad_words(raw: msgspec.Raw, param: str) -> list[str]:
    """Read texts that must not come."""
    return decoded(raw, _BAD_WORDS, param, schema.MAX_STOP_BYTES) or []


def allowed_ids(raw: msgspec.Raw, param: str) -> list[int]:
    """Read the token ids that may come, one at least where the member is there."""
    return decoded(raw, _ALLOWED_IDS, param, schema.MAX_ALLOWED_ID_BYTES) or []


def template_members(raw: msgspec.Raw, param: str) -> dict[str, Any]:
    """Read what a chat template is told beside the messages."""
    told = decoded(raw, _OBJECT, param, schema.MAX_TEMPLATE_BYTES) or {}
    if any(not name.isidentifier() for name in told):
        raise bad(param, f"the members of '{param}' are names that a template can use: letters, digits and '_'")
    if not _is_flat(told, schema.MAX_TEMPLATE_DEPTH):
        raise bad(
            param, f"'{param}' is nested more than {schema.MAX_TEMPLATE_DEPTH} deep, or has a number over 64 bits"
        )
    return told


def _is_flat(value: object, levels: int) -> bool:
    """Whether a value goes no deeper than ``levels``, and can be said to a device."""
    if isinstance(value, (dict, list)):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_flat(each, levels - 1) for each in inner)
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def logit_bias(raw: msgspec.Raw, param: str) -> dict[int, float]:
    """Read what is added to logits, by token id."""
    given = decoded(raw, _LOGIT_BIAS, param, schema.MAX_LOGIT_BIAS_BYTES) or {}
    if len(given) > schema.MAX_LOGIT_BIAS:
        raise bad(param, f"more than {schema.MAX_LOGIT_BIAS} entries")
    for key in given:
        if not _TOKEN_ID.fullmatch(key) or int(key) > schema.MAX_TOKEN_ID:
            raise bad(param, f"the keys are token ids: integers from 0 to {schema.MAX_TOKEN_ID}, as strings")
    return {int(key): bias for key, bias in given.items()}


def content_texts(raw: msgspec.Raw, param: str, parts: int, kinds: Sequence[str] = ("text",)) -> list[str] | None:
    """Read the ``content`` of a message as texts; None where it is null.

    Args:
        parts: content parts that the messages before it have.
        kinds: what parts with text are called, beside those of a refusal.
    """
    data = bytes(raw)
    if data.startswith(b"[") and strings_in(data) > schema.MAX_PART_STRINGS:
        raise bad(param, f"more than {schema.MAX_PARTS} content parts, or parts with too many members")
    content = decoded(raw, _CONTENT, param)
    if content is None or isinstance(content, str):
        return content if content is None else [content]
    if parts + len(content) > schema.MAX_PARTS:
        raise bad(param, f"the messages have more than {schema.MAX_PARTS} content parts together")
    texts = []
    for place, part in enumerate(content):
        if part.type == REFUSAL and part.refusal is not None:
            texts.append(part.refusal)
            continue
        if part.type not in kinds:
            told = f"content parts of type '{part.type[:MAX_SHOWN]}' are not supported, only those of type '{kinds[0]}'"
            raise bad(f"{param}[{place}]", f"{told}: leave it out, or say in words what it shows", "unsupported_value")
        if part.text is None:
            raise bad(f"{param}[{place}].text", f"a content part of type '{part.type}' has a 'text'")
        texts.append(part.text)
    return texts


def calls_of(raw: msgspec.Raw, param: str, before: int) -> list[ToolCall]:
    """Read the calls of tools that a message has.

    Args:
        before: calls that the messages before it have.
    """
    if strings_in(bytes(raw)) > schema.MAX_PART_STRINGS:
        raise bad(param, f"more than {schema.MAX_CALLS} calls, or calls with too many members")
    called = decoded(raw, _CALLED, param) or []
    if before + len(called) > schema.MAX_CALLS:
        raise bad(param, f"the messages have more than {schema.MAX_CALLS} calls together")
    calls = []
    for at, each in enumerate(called):
        if each.function is None:
            at_call = f"{param}[{at}]"
            if each.type not in (None, "function"):
                told = f"calls of type '{each.type[:MAX_SHOWN]}' are not supported, only those of type 'function'"
                raise bad(f"{at_call}.type", f"{told}: leave it out", "unsupported_value")
            raise bad(f"{at_call}.function", f"'{at_call}.function' is required", "missing_required_parameter")
        calls.append(ToolCall(each.id, each.function.name, each.function.arguments or ""))
    return calls


def prompts_of(raw: msgspec.Raw) -> tuple[Prompt, ...]:
    """Return the prompts of a completion request: a text, texts, token ids, or lists of token ids.

    Raises:
        RequestError: they are none of the four forms, empty, or too many.
    """
    data = bytes(raw)
    if data.startswith(b'"'):
        return (_text(decoded(raw, _TEXT, "prompt"), "prompt"),)
    first = _FIRST.match(data)
    if first is None:
        forms = "'prompt' is a text, a list of texts, a list of token ids, or a list of such lists"
        raise bad("prompt", forms, "invalid_type")
    kind = first.group(1)
    if kind == b"]":
        raise bad("prompt", "'prompt' is empty")
    if kind == b'"':
        _check_count(strings_in(data))
        texts = decoded(raw, _TEXTS, "prompt")
        return tuple(_text(each, f"prompt[{at}]") for at, each in enumerate(texts))
    if data.count(b",") >= schema.MAX_PROMPT_IDS:
        raise bad("prompt", f"more than {schema.MAX_PROMPT_IDS} token ids")
    if kind == b"[":
        _check_count(data.count(b"[") - 1)
    try:
        if kind == b"[":
            lists = decoded(raw, _LISTS, "prompt")
            return tuple(map(tuple, lists))
        ids = decoded(raw, _IDS, "prompt")
        return (tuple(ids),)
    except RequestError as error:
        place = _PLACE.match(error.param or "") if kind == b"[" else None
        told = f"a prompt of token ids is a list of at least one integer from 0 to {schema.MAX_TOKEN_ID}"
        raise bad(place.group() if place is not None else "prompt", told) from None


def strings_in(data: bytes) -> int:
    """Return how many strings there are in JSON: two quotes each that are not escaped."""
    plain = data.replace(rb"\\", b"")
    return (plain.count(b'"') - plain.count(rb"\"")) // 2


def decoded(raw: msgspec.Raw, decoder: msgspec.json.Decoder[Value], param: str, most_bytes: int | None = None) -> Value:
    """Decode a member that was kept raw.

    Raises:
        RequestError: it is longer than ``most_bytes``, or not what it has to be.
    """
    if most_bytes is not None and len(memoryview(raw)) > most_bytes:
        raise bad(param, f"more than {most_bytes} bytes")
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise translated(str(error), param) from None
    except RecursionError:
        raise bad(param, f"'{param}' is nested too deeply: send fewer levels") from None
    except UnicodeDecodeError:  # The body's own decoder does not look into what it keeps raw.
        raise bad(param, f"'{param}' is not UTF-8") from None


def translated(text: str, inside: str = "") -> RequestError:
    """Return the error that tells msgspec's message, ``Expected `int`, got `str` - at `$.n```. The path becomes
    ``param``, behind ``inside``.

    What is before the path may quote the client, also with something like a path: only the last one is msgspec's.
    """
    reason, _, tail = text.rpartition(" - at `$")
    path = _PATH.fullmatch(tail)
    if path is None:
        reason = text
    param = (inside + (path.group(1) if path is not None else "")).lstrip(".")
    missing = _MISSING.fullmatch(reason)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return bad(param, f"'{param}' is required", "missing_required_parameter")
    code = "invalid_type" if ", got `" in reason else "invalid_value"
    return bad(param or None, f"'{param}': {reason}" if param else reason, code)


def bad(param: str | None, message: str, code: str = "invalid_value") -> RequestError:
    """Return the error of a member that is not as it has to be."""
    return RequestError(400, message, code=code, param=param)


def _check_count(prompts: int) -> None:
    if prompts > schema.MAX_CHOICES:
        raise bad("prompt", f"more than {schema.MAX_CHOICES} prompts")


def _text(text: str, at: str) -> str:
    if not text:
        raise bad(at, "an empty prompt cannot be continued")
    return text
