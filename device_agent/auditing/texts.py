"""The text that an audit is tried on: some passages are sent and attacked, from the others an attacker learns."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from device_agent.answering.tokenizer import Tokenizer

MOST_BYTES: Final = 32 * 2**20
"""Of a text file; the first so many are read."""

LEAST_TOKENS: Final = 8
"""A shorter piece is no passage."""

MOST_TOKENS: Final = 400_000
"""More text than that is not read into passages: nobody learns from so much here."""


class BadText(Exception):
    """There is no text to try an audit on; the message says why."""


@dataclass(frozen=True)
class Passages:
    """A text's tokens, in passages that do not overlap.

    Attributes:
        begins: how many tokens of each passage are there whatever the text is.
        attacked: those that are sent.
        known: the others, in an order by chance: the first of them say as much as any.
    """

    begins: int
    attacked: tuple[tuple[int, ...], ...]
    known: tuple[tuple[int, ...], ...]


def passages(path: Path, tokenizer: Tokenizer, attacked: int, length: int, seed: int) -> Passages:
    """Cut a text file into passages of ``length`` tokens at most, and draw those that are attacked by ``seed``.

    Raises ``BadText`` where it cannot be read or has too few.
    """
    begin = tuple(tokenizer.text(""))
    size, found, tokens = length - len(begin), list[tuple[int, ...]](), 0
    for paragraph in paragraphs(path):
        ids = tokenizer.rendered(paragraph)
        for at in range(0, len(ids), size):
            if len(ids) - at >= LEAST_TOKENS:
                found.append((*begin, *ids[at : at + size]))
        tokens += len(ids)
        if tokens >= MOST_TOKENS:
            break
    if len(found) < attacked + 2:
        raise BadText(f"{path} has {len(found)} passages; {attacked} to attack and 2 to learn from are needed")
    random.Random(seed).shuffle(found)
    return Passages(len(begin), tuple(found[:attacked]), tuple(found[attacked:]))


def paragraphs(path: Path) -> Iterator[str]:
    """What a file says: of plain text what is between empty lines; of JSON lines each ``text``, ``prompt``, ``answer``
    and what ``messages`` say.

    Raises ``BadText``.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8-sig", "replace")
    except OSError as error:
        raise BadText(f"{path} cannot be read: {error.strerror}") from error
    if path.suffix != ".jsonl":
        yield from filter(None, (part.strip() for part in text.split("\n\n")))
        return
    for number, line in enumerate(text.split("\n"), 1):  # JSON may have what else ends a line for Python.
        if line.strip():
            yield from _said(path, number, line)


def _said(path: Path, number: int, line: str) -> Iterator[str]:
    try:
        found: Any = json.loads(line)
    except ValueError:
        raise BadText(f"line {number} of {path} is no JSON") from None
    if not isinstance(found, dict):
        raise BadText(f"line {number} of {path} is no JSON object")
    messages = found.get("messages")
    turns = [turn.get("content") for turn in messages if isinstance(turn, dict)] if isinstance(messages, list) else []
    words = [each for each in (*turns, *map(found.get, ("text", "prompt", "answer"))) if isinstance(each, str)]
    joined = "\n".join(words).strip()
    if joined:
        yield joined
