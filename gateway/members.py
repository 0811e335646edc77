"""Members of a request body that are read apart from it, and the errors that name a member. Pure.

What may be a long list is kept raw by the body's decoder: here it is looked at before objects are made of it.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from gateway.errors import RequestError
from gateway.openai_schema import (
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIAS_BYTES,
    MAX_PART_STRINGS,
    MAX_PARTS,
    MAX_STOP_BYTES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_ID_BYTES,
    MAX_TOKEN_ID,
    Content,
    LogitBias,
    StopIds,
    StopTexts,
)

Value = TypeVar("Value")

_TOKEN_ID: Final = re.compile(r"[0-9]{1,10}")
_PATH: Final = re.compile(r"\.?([A-Za-z0-9_.\[\]]*)`")
_MISSING: Final = re.compile(r"Object missing required field `([a-z_]*)`")

_STOPS: Final[msgspec.json.Decoder[str | list[str] | None]] = msgspec.json.Decoder(StopTexts)
_STOP_IDS: Final[msgspec.json.Decoder[list[int] | None]] = msgspec.json.Decoder(StopIds)
_LOGIT_BIAS: Final[msgspec.json.Decoder[dict[str, float] | None]] = msgspec.json.Decoder(LogitBias)
_CONTENT: Final[msgspec.json.Decoder[Content]] = msgspec.json.Decoder(Content)


def whole(value: float | None, param: str) -> int | None:
    """A number that may be written with a point."""
    if isinstance(value, float) and not value.is_integer():
        raise bad(param, f"'{param}' is a whole number", "invalid_type")
    return None if value is None else int(value)


def stop_texts(raw: msgspec.Raw, param: str) -> list[str]:
    """One text or several; an empty one stops nothing."""
    stop = decoded(raw, _STOPS, param, MAX_STOP_BYTES)
    if not isinstance(stop, str):
        return stop or []
    if len(stop) > MAX_STOP_CHARACTERS:
        raise bad(param, f"a stop text has 1 to {MAX_STOP_CHARACTERS} characters")
    return [stop] if stop else []


def stop_ids(raw: msgspec.Raw, param: str) -> list[int]:
    """A list of token ids."""
    return decoded(raw, _STOP_IDS, param, MAX_STOP_ID_BYTES) or []


def logit_bias(raw: msgspec.Raw, param: str) -> dict[int, float]:
    """What is added to logits, by token id."""
    given = decoded(raw, _LOGIT_BIAS, param, MAX_LOGIT_BIAS_BYTES) or {}
    if len(given) > MAX_LOGIT_BIAS:
        raise bad(param, f"more than {MAX_LOGIT_BIAS} entries")
    for key in given:
        if not _TOKEN_ID.fullmatch(key) or int(key) > MAX_TOKEN_ID:
            raise bad(param, f"the keys are token ids: integers from 0 to {MAX_TOKEN_ID}, as strings")
    return {int(key): bias for key, bias in given.items()}


def content_texts(raw: msgspec.Raw, param: str, parts: int) -> list[str] | None:
    """The ``content`` of a message, as texts; None where it is null.

    Args:
        parts: content parts that the messages before it have.
    """
    data = bytes(raw)
    if data.startswith(b"[") and strings_in(data) > MAX_PART_STRINGS:
        raise bad(param, f"more than {MAX_PARTS} content parts, or parts with too many members")
    content = decoded(raw, _CONTENT, param)
    if content is None or isinstance(content, str):
        return content if content is None else [content]
    if parts + len(content) > MAX_PARTS:
        raise bad(param, f"the messages have more than {MAX_PARTS} content parts together")
    texts = []
    for place, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise bad(f"{param}[{place}]", "only content parts of type 'text', with a text, are supported")
        texts.append(part.text)
    return texts


def strings_in(data: bytes) -> int:
    """How many strings there are in JSON: two quotes each that are not escaped."""
    plain = data.replace(rb"\\", b"")
    return (plain.count(b'"') - plain.count(rb"\"")) // 2


def decoded(raw: msgspec.Raw, decoder: msgspec.json.Decoder[Value], param: str, most_bytes: int | None = None) -> Value:
    """A member that was kept raw.

    Raises:
        RequestError: it is longer than ``most_bytes``, or not what it has to be.
    """
    if most_bytes is not None and len(memoryview(raw)) > most_bytes:
        raise bad(param, f"more than {most_bytes} bytes")
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise translated(str(error), param) from None
    except UnicodeDecodeError:  # The body's own decoder does not look into what it keeps raw.
        raise bad(param, f"'{param}' is not UTF-8") from None


def translated(text: str, inside: str = "") -> RequestError:
    """msgspec's message, ``Expected `int`, got `str` - at `$.n```, its path, from ``inside`` on, as ``param``.

    What is before the path may quote the client, also with something like a path: only the last one is msgspec's.
    """
    reason, _, tail = text.rpartition(" - at `$")
    path = _PATH.fullmatch(tail)
    if path is None:
        reason = text
    param = inside + (path.group(1) if path is not None else "")
    missing = _MISSING.fullmatch(reason)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return bad(param, f"'{param}' is required", "missing_required_parameter")
    code = "invalid_type" if ", got `" in reason else "invalid_value"
    return bad(param or None, f"'{param}': {reason}" if param else reason, code)


def bad(param: str | None, message: str, code: str = "invalid_value") -> RequestError:
    """A member is not as it has to be."""
    return RequestError(400, message, code=code, param=param)
