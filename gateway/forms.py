"""The form that an answer is to have: ``response_format`` as OpenAI has it, ``structured_outputs`` as vLLM has it, and
its older ``guided_json``, ``guided_regex``, ``guided_choice`` and ``guided_grammar``. Pure.

What it means is the device's business, where tokens are chosen. Here it is only looked at how large it is.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gateway.members import bad, decoded
from gateway.openai_schema import NULL, FormMembers, Label
from wire.request_messages import Grammar

MAX_FORM_BYTES: Final = 2**16
"""A schema, a list of choices, a grammar or an expression."""

MAX_DEPTH: Final = 64
"""Of objects and lists in a schema, one within the other."""

MAX_LISTED: Final = 1000
"""Choices."""

ANY_OBJECT: Final = '{"type":"object"}'

Kind = Literal["json", "regex", "choice", "grammar"]

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
"""One that never ends, too: else its end would be looked for from each quote in it."""
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_KINDS: Final[tuple[Kind, ...]] = ("json", "regex", "choice", "grammar")
_NOT_YET: Final = ("structural_tag",)


class _Format(msgspec.Struct):
    type: Label
    json_schema: msgspec.Raw = NULL
    schema: msgspec.Raw = NULL


class _Named(msgspec.Struct):
    """A schema as OpenAI wraps it."""

    schema: msgspec.Raw = NULL
    name: Label | None = None
    strict: bool | None = None


class _Structured(msgspec.Struct):
    json: msgspec.Raw = NULL
    regex: msgspec.Raw = NULL
    choice: msgspec.Raw = NULL
    grammar: msgspec.Raw = NULL
    json_object: bool | None = None
    structural_tag: msgspec.Raw = NULL


_FORMAT: Final = msgspec.json.Decoder(_Format)
_NAMED: Final = msgspec.json.Decoder(_Named)
_STRUCTURED: Final = msgspec.json.Decoder(_Structured)
_TEXT: Final = msgspec.json.Decoder(str)
_CHOICES: Final = msgspec.json.Decoder(Annotated[list[str], Meta(min_length=1, max_length=MAX_LISTED)])
_ANY: Final = msgspec.json.Decoder()


def form_of(fields: FormMembers) -> Grammar | None:
    """Return the form that a body asks for; None: text.

    Raises:
        RequestError: it is not as it has to be, too large, or there are two.
    """
    found = [*_formatted(fields.response_format), *_structured(fields.structured_outputs)]
    for kind in _KINDS:
        name = f"guided_{kind}"
        found += _given(kind, getattr(fields, name), name)
    if len(found) > 1:
        raise bad(found[1].param, f"an answer has one form, and '{found[0].param}' asks for one too")
    return found[0] if found else None


def text_format(raw: msgspec.Raw) -> Grammar | None:
    """Return the form that ``text.format`` of a response asks for: as ``response_format``, its schema not wrapped up;
    raises like ``form_of``."""
    at = "text.format"
    if (named := _kind_of(raw, at)) is None:
        return None
    if named.type == "json_schema" and _null(named.schema):
        raise bad(f"{at}.schema", f"'{at}.schema' is required", "missing_required_parameter")
    found = _given("json", named.schema, f"{at}.schema") or [Grammar("json", ANY_OBJECT, at)]
    return found[0]


def _formatted(raw: msgspec.Raw) -> list[Grammar]:
    if (given := _kind_of(raw, "response_format")) is None:
        return []
    if given.type == "json_object":
        at = "response_format.schema"
        return _given("json", given.schema, at) or [Grammar("json", ANY_OBJECT, "response_format")]
    at = "response_format.json_schema"
    if _null(given.json_schema):
        raise bad(at, f"'{at}' is required", "missing_required_parameter")
    named = decoded(given.json_schema, _NAMED, at)
    return _given("json", named.schema, f"{at}.schema") or [Grammar("json", ANY_OBJECT, at)]


def _kind_of(raw: msgspec.Raw, at: str) -> _Format | None:
    """The format of an answer that is not simply text."""
    if _null(raw) or (given := decoded(raw, _FORMAT, at)).type == "text":
        return None
    if given.type not in ("json_object", "json_schema"):
        raise bad(f"{at}.type", f"'{at}.type' is 'text', 'json_object' or 'json_schema'", "unsupported_value")
    return given


def _structured(raw: msgspec.Raw) -> list[Grammar]:
    if _null(raw):
        return []
    given = decoded(raw, _STRUCTURED, "structured_outputs")
    for name in _NOT_YET:
        if not _null(getattr(given, name)):
            raise bad(f"structured_outputs.{name}", f"'{name}' is not supported", "unsupported_value")
    found = [Grammar("json", ANY_OBJECT, "structured_outputs.json_object")] if given.json_object else []
    for kind in _KINDS:
        found += _given(kind, getattr(given, kind), f"structured_outputs.{kind}")
    return found


def _given(kind: Kind, raw: msgspec.Raw, param: str) -> list[Grammar]:
    """The form that a member gives; none where it is null."""
    if _null(raw):
        return []
    _check_size(raw, param)
    if kind == "choice":
        return [Grammar(kind, msgspec.json.encode(decoded(raw, _CHOICES, param)).decode(), param)]
    if kind == "json":
        return [Grammar(kind, schema_of(raw, param)[0], param)]
    return [Grammar(kind, decoded(raw, _TEXT, param), param)]


def _check_size(raw: msgspec.Raw, param: str) -> None:
    if len(memoryview(raw)) > MAX_FORM_BYTES:
        raise bad(param, f"it has more than {MAX_FORM_BYTES} bytes: make it smaller")


def schema_of(raw: msgspec.Raw, param: str) -> tuple[str, dict[str, Any] | bool]:
    """Return a schema as text and as it is. Some clients send it within a text.

    Raises:
        RequestError: it is none, too large, or too deep.
    """
    _check_size(raw, param)
    data = bytes(raw)
    if data.startswith(b'"'):
        data = decoded(raw, _TEXT, param).encode("utf-8", "surrogatepass")
    if depth_of(data) > MAX_DEPTH:
        raise bad(param, f"a schema is at most {MAX_DEPTH} objects and lists deep")
    try:
        schema = _ANY.decode(data)
        text = data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise bad(param, "a schema is JSON in UTF-8") from None
    if not isinstance(schema, (dict, bool)):
        raise bad(param, "a schema is an object, or true", "invalid_type")
    return text, schema


def depth_of(data: bytes) -> int:
    """Return how many objects and lists are within one another in JSON, at most."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(depth, deepest)
    return deepest


def _null(raw: msgspec.Raw) -> bool:
    return bytes(raw) == b"null"
