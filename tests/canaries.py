"""Words that must occur nowhere but with the owner of a text, and the search for them."""

from __future__ import annotations

import base64
import itertools
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
from checkpoints import DEMO
from transformers import AutoTokenizer

CANARIES = ["Wilhelmina", "Zanzibar", "quicksilver harpsichord", "48151623"]
PROMPT = f"My name is {CANARIES[0]} and I keep a {CANARIES[2]} in {CANARIES[1]}. The code is {CANARIES[3]}."


def written(text: str, ids: list[int]) -> Iterator[bytes]:
    """Ways in which text or token ids could be written."""
    for form in (text, text.lower(), text.upper()):
        for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
            yield form.encode(encoding)
        for shift in range(3):  # base64 depends on where in the message the text begins
            yield base64.b64encode(b"\0" * shift + form.encode())[4:-4]
        yield form.encode().hex().encode()
    for form in ("<H", ">H", "<I", ">I", "<q", ">q", "<f"):
        yield b"".join(struct.pack(form, each) for each in ids)
    yield b"".join(msgspec.msgpack.encode(each) for each in ids)
    yield ", ".join(map(str, ids)).encode()
    yield ",".join(map(str, ids)).encode()


def found(haystack: bytes, needles: list[bytes]) -> list[bytes]:
    """The needles that are there."""
    return [needle for needle in needles if needle in haystack]


def needles() -> list[bytes]:
    """Everything that must not be found: words, and runs of three token ids of the prompt."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    words = [(word, tokenizer.encode(" " + word, add_special_tokens=False)) for word in CANARIES]
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    runs = [ids[at : at + 6] for at in range(len(ids) - 5)]
    named = itertools.chain.from_iterable(written(word, [*tokens, *tokens]) for word, tokens in words)
    return [each for each in {*named, *(t for run in runs for t in written("\0\0\0\0\0\0", run))} if len(each) >= 8]
