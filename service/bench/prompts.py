"""What a load asks: sentences of its own, drawn anew for each request so that no answer is a repetition, or those of a
file."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Union

import msgspec

MAX_FILE_BYTES: Final = 64 * 2**20

SENTENCES: Final = (
    "The old harbour wakes up before the sun does.",
    "A baker on the corner lights her oven at four.",
    "Three gulls argue about a piece of bread.",
    "The ferry is late again, and nobody is surprised.",
    "Rain has washed the letters off the timetable.",
    "A boy counts the boats and gets a different number each time.",
    "His sister says that the blue one counts twice.",
    "Under the bridge somebody plays a slow song on a violin.",
    "The lighthouse keeper writes every ship into a book.",
    "On Tuesdays the market sells apples, honey and second-hand clocks.",
    "None of the clocks agree, but all of them tick.",
    "A dog sleeps in the middle of the road, and the tram waits.",
    "The mayor has promised a new roof for the school.",
    "In winter the hills turn white and the river grows quiet.",
    "My grandmother kept a map of places that no longer exist.",
    "Every evening the fishermen mend their nets and tell the same story.",
    "The librarian knows which book you want before you do.",
    "A kite is stuck in the tallest tree of the park.",
    "Two engineers measure the tower and shake their heads.",
    "The train to the mountains leaves from platform nine.",
    "Someone has painted a small green door on the sea wall.",
    "The cook tastes the soup and adds one more pinch of salt.",
    "At noon the bells ring for longer than they should.",
    "A stranger asks the way to a street that has no name.",
)

QUESTIONS: Final = (
    "Go on with this story.",
    "What happens next?",
    "Say in a few sentences what this is about.",
    "Who might have written this, and why?",
    "Tell it again from the point of view of somebody else.",
    "What would you ask the people in it?",
)

NEEDS: Final = 'a line is text, or JSON with "prompt", "text" or "messages", and "max_tokens" where it has its own'


class BadPrompts(ValueError):
    """The file of prompts cannot be used; the message says why, and where."""


@dataclass(frozen=True)
class Prompt:
    """One request's messages, as a chat has them, and the longest answer in tokens where it has a limit of its own."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None


class _Line(msgspec.Struct):
    """A line of a file, as JSON."""

    prompt: str | None = None
    text: str | None = None
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


_lines: Final = msgspec.json.Decoder(Union[_Line, str])


def drawn(words: int, seed: int) -> Iterator[Prompt]:
    """Prompts of ``words`` words or a few more, without end; the same for the same seed."""
    draw = random.Random(f"{seed} prompts")
    while True:
        said, count = [], 0
        while count < words:
            said.append(draw.choice(SENTENCES))
            count += len(said[-1].split())
        yield _asked(" ".join([*said, draw.choice(QUESTIONS)]))


def read(path: str) -> Iterator[Prompt]:
    """The prompts of a file in their order, again and again. Raises ``BadPrompts``."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise BadPrompts(f"{path} has more than {MAX_FILE_BYTES >> 20} MiB")
        lines = data.decode("utf-8-sig").split("\n")  # JSON may have what else ends a line for Python.
    except (OSError, UnicodeDecodeError) as error:
        raise BadPrompts(f"{path} cannot be read: {error}") from error
    prompts = [_prompt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise BadPrompts(f"{path} has no prompts: {NEEDS}")
    return itertools.cycle(prompts)


def _prompt(line: str, where: str) -> Prompt:
    if line.lstrip()[0] not in '{"':
        return _asked(line.strip())
    try:
        found = _lines.decode(line)
    except msgspec.DecodeError as error:
        if line.lstrip()[0] == '"':  # Somebody speaks.
            return _asked(line.strip())
        raise BadPrompts(f"{where}: {error}; {NEEDS}") from error
    if isinstance(found, str):
        return _asked(found)
    if found.messages is not None:
        return Prompt(found.messages, found.max_tokens)
    said = found.prompt if found.prompt is not None else found.text
    if said is None:
        raise BadPrompts(f"{where}: {NEEDS}")
    return _asked(said, found.max_tokens)


def _asked(text: str, max_tokens: int | None = None) -> Prompt:
    return Prompt([{"role": "user", "content": text}], max_tokens)
