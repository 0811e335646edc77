"""From the bytes of a request body to a ``ReadAsk``, or a ``RequestError`` that names the member at fault. Pure.

Where OpenAI leaves room: an empty text is refused, and so is a request without any. ``/v1/classify`` takes pairs of
texts too, as lists of two, for models that tell two texts apart.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway import openai_schema as schema
from gateway.errors import RequestError
from gateway.members import bad, decoded, strings_in, whole
from gateway.parsing import decoded_body
from gateway.reading_request import Input, ReadAsk, ReadEndpoint
from gateway.reading_schema import MAX_READ, ClassifyBody, EmbeddingBody

_FORM: Final = re.compile(rb'\[[ \t\r\n]*(?:(["\]])|(\[)[ \t\r\n]*(")?|())', re.DOTALL)
"""The first member of a list: a text, none, a list of texts or of something else, or something else."""
_PLACE: Final = re.compile(r"input(?:\[[0-9]+\])?")

_TEXT: Final = msgspec.json.Decoder(str)
_TEXTS: Final = msgspec.json.Decoder(list[str])
_PAIRS: Final = msgspec.json.Decoder(list[tuple[str, str]])
_IDS: Final = msgspec.json.Decoder(schema.TokenIds)
_LISTS: Final = msgspec.json.Decoder(list[schema.TokenIds])

_EMBEDDING: Final = msgspec.json.Decoder(EmbeddingBody)
_CLASSIFY: Final = msgspec.json.Decoder(ClassifyBody)


def parse_read(endpoint: ReadEndpoint, body: bytes, tenant: str = "") -> ReadAsk:
    """Read the request body of a tenant.

    Raises:
        RequestError: it is not JSON, or a member is missing, of the wrong type or out of range.
    """
    if endpoint == "classify":
        classify = decoded_body(_CLASSIFY, body)
        return ReadAsk(endpoint, classify.model, inputs_of(classify.input, pairs=True), tenant)
    fields = decoded_body(_EMBEDDING, body)
    return ReadAsk(
        endpoint,
        fields.model,
        inputs_of(fields.input, pairs=False),
        tenant,
        dimensions=whole(fields.dimensions, "dimensions") or 0,
        as_base64=fields.encoding_format == "base64",
    )


def inputs_of(raw: msgspec.Raw, *, pairs: bool) -> tuple[Input, ...]:
    """Return the inputs: of a text, texts, token ids, or lists of token ids; or of ``pairs`` of texts.

    Raises:
        RequestError: they are none of these, empty, or too many.
    """
    data = bytes(raw)
    if data.startswith(b'"'):
        return (_texts((decoded(raw, _TEXT, "input"),), "input"),)
    form = _FORM.match(data)
    if form is None:
        forms = "'input' is a text, a list of texts, a list of token ids, or a list of such lists"
        raise bad("input", forms, "invalid_type")
    first, inner, inner_text, _ = form.groups()
    if first == b"]":
        raise bad("input", "'input' is empty")
    if first is not None or (inner_text and pairs):
        _check_count(strings_in(data) // (2 if inner else 1))
        found = decoded(raw, _PAIRS, "input") if inner else [(each,) for each in decoded(raw, _TEXTS, "input")]
        _check_count(len(found))
        return tuple(_texts(each, f"input[{at}]") for at, each in enumerate(found))
    if data.count(b",") >= schema.MAX_PROMPT_IDS:
        raise bad("input", f"more than {schema.MAX_PROMPT_IDS} token ids")
    if inner:
        _check_count(data.count(b"[") - 1)
    try:
        lists = decoded(raw, _LISTS, "input") if inner else [decoded(raw, _IDS, "input")]
        return tuple(tuple(each) for each in lists)
    except RequestError as error:
        place = _PLACE.match(error.param or "") if inner else None
        told = f"an input of token ids is a list of at least one integer from 0 to {schema.MAX_TOKEN_ID}"
        raise bad(place.group() if place is not None else "input", told) from None


def _check_count(inputs: int) -> None:
    if inputs > MAX_READ:
        raise bad("input", f"more than {MAX_READ} inputs")


def _texts(texts: tuple[str, ...], at: str) -> tuple[str, ...]:
    if not all(texts):
        raise bad(at, f"'{at}' is an empty text")
    return texts
