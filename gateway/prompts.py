"""The four forms of a completion's prompt: a text, texts, token ids, lists of token ids. Pure.

A list is looked at before it is decoded: its kind by its first member, its length by its bytes. Both are cheap, and a
list that is too long never becomes a million objects.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway.errors import RequestError
from gateway.members import bad, decoded, strings_in
from gateway.openai_schema import MAX_CHOICES, MAX_PROMPT_IDS, MAX_TOKEN_ID, TokenIds
from gateway.request import Prompt

_FIRST: Final = re.compile(rb"\[[ \t\r\n]*(.)", re.DOTALL)
_PLACE: Final = re.compile(r"prompt(?:\[[0-9]+\])?")

_TEXT: Final = msgspec.json.Decoder(str)
_TEXTS: Final = msgspec.json.Decoder(list[str])
_IDS: Final = msgspec.json.Decoder(TokenIds)
_LISTS: Final = msgspec.json.Decoder(list[TokenIds])


def prompts_of(raw: msgspec.Raw) -> tuple[Prompt, ...]:
    """The prompts of a completion request.

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
    if data.count(b",") >= MAX_PROMPT_IDS:
        raise bad("prompt", f"more than {MAX_PROMPT_IDS} token ids")
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
        told = f"a prompt of token ids is a list of at least one integer from 0 to {MAX_TOKEN_ID}"
        raise bad(place.group() if place is not None else "prompt", told) from None


def _check_count(prompts: int) -> None:
    if prompts > MAX_CHOICES:
        raise bad("prompt", f"more than {MAX_CHOICES} prompts")


def _text(text: str, at: str) -> str:
    if not text:
        raise bad(at, "an empty prompt cannot be continued")
    return text
