"""Training text: plain files or conversations, as token ids of which some are the model's own answers.

A conversation is written with the model's chat template. What stands between the prompt that a device would send and
the end of the assistant's turn is the answer; the two are tokenised apart, as they are when the model itself answers.
Plain text comes as passages, each of which becomes a document whenever it is cut into a prompt and what follows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drafting.distill.passages import LEAST_PROMPT, Passage, begins, passages, prompt_length

Message = dict[str, str]


class BadText(Exception):
    """A text file is not what it should be; the message names file and line."""


@dataclass(frozen=True)
class Document:
    """One text: `ids` int32 [tokens], and `own` bool [tokens], true where the model itself is to say the token."""

    ids: np.ndarray
    own: np.ndarray

    @property
    def prompt(self) -> int:
        """Tokens before the last answer; all of them where there is none."""
        last = np.flatnonzero(self.own)
        if not len(last):
            return len(self.ids)
        others = np.flatnonzero(~self.own[: last[-1]])
        return int(others[-1]) + 1 if len(others) else 0


Sample = Document | Passage
"""What a text file has: a conversation, or a piece of plain text to be cut."""


class Writer:
    """Conversations and plain text to documents, with a model's own tokenizer and chat template."""

    def __init__(self, tokenizer: Any, longest: int) -> None:
        """`longest`: tokens of a document; what is longer is parted (plain text) or left out."""
        self._tokenizer = tokenizer
        self._longest = longest

    @classmethod
    def load(cls, model: Path, longest: int) -> Writer:
        """With the tokenizer of a checkpoint folder. Raises BadText where there is none."""
        from transformers import AutoTokenizer  # Slow to import, and only needed here.

        try:
            return cls(
                AutoTokenizer.from_pretrained(str(model), local_files_only=True, trust_remote_code=False), longest
            )
        except Exception as error:  # tokenizers raises nothing more special.
            raise BadText(f"{model} has no tokenizer that can be read: {error}") from error

    def plain(self, text: str) -> Iterator[Passage]:
        """The passages of a text without turns."""
        return passages(text, lambda piece: len(self._tokenizer.encode(piece, add_special_tokens=False)), self._longest)

    def whole(self, passage: Passage) -> Document | None:
        """A passage as it is, all behind its first tokens as good as an answer; None where it has a single token."""
        return self._parted(passage.text, None)

    def cut(self, passage: Passage, chance: random.Random) -> Document | None:
        """A prompt that begins at a line of a passage, and what comes behind it; None where that is a single token."""
        text = passage.text
        # From its first half on, so that a good part of the passage is left.
        return self._parted(text[chance.choice([at for at in begins(passage) if 2 * at <= len(text)]) :], chance)

    def _parted(self, text: str, chance: random.Random | None) -> Document | None:
        ids = np.array(self._tokenizer.encode(text)[: self._longest], dtype=np.int32)
        prompt = prompt_length(len(ids), chance) if chance is not None else min(LEAST_PROMPT, len(ids) // 2)
        return Document(ids, np.arange(len(ids)) >= prompt) if prompt else None

    def conversation(self, messages: Sequence[Message]) -> Document | None:
        """One conversation; None where it has no answer or is too long.

        Raises BadText where the model has no chat template or it refuses the messages.
        """
        if not getattr(self._tokenizer, "chat_template", None):
            raise BadText("this model has no chat template: give plain text")
        turns = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
        if not turns:
            return None
        pieces: list[tuple[str, bool]] = []
        written = ""
        for turn in turns:
            prompt, whole = self._rendered(messages[:turn], True), self._rendered(messages[: turn + 1], False)
            if not whole.startswith(prompt):
                raise BadText("the chat template writes an answer otherwise than it asks for it")
            if not prompt.startswith(written):
                # Some templates rewrite earlier answers: then only what was written last is as the model sees it.
                pieces, written = [], ""
            pieces += [(prompt[len(written) :], False), (whole[len(prompt) :], True)]
            written = whole
        ids: list[int] = []
        own: list[bool] = []
        for text, said in pieces:
            part = self._tokenizer.encode(text, add_special_tokens=False)
            ids += part
            own += [said] * len(part)
        if len(ids) > self._longest:
            return None
        return Document(np.array(ids, dtype=np.int32), np.array(own, dtype=bool))

    def _rendered(self, messages: Sequence[Message], ask: bool) -> str:
        from jinja2.exceptions import TemplateError

        try:
            return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=ask))
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise BadText(f"the chat template refuses these messages: {str(error)[:200]}") from error


def samples(path: Path, writer: Writer) -> Iterator[Sample]:
    """What one file has: `.jsonl` one conversation or text a line, anything else plain text.

    A line is `{"messages": [...]}`, the same with an `"answer"`, `{"prompt": ..., "answer": ...}` or `{"text": ...}`.
    Raises BadText, naming file and line.
    """
    try:
        if path.suffix != ".jsonl":
            yield from writer.plain(path.read_text(encoding="utf-8"))
            return
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield from _of_line(line, f"{path}:{number}", writer)
    except (OSError, UnicodeDecodeError) as error:
        raise BadText(f"{path} cannot be read: {error}") from error


def _of_line(line: str, where: str, writer: Writer) -> Iterator[Sample]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadText(f"{where}: no sound JSON: {error}") from error
    if isinstance(found, dict) and isinstance(found.get("text"), str):
        yield from writer.plain(found["text"])
        return
    try:
        document = writer.conversation(_messages(found, where))
    except BadText as error:
        raise BadText(f"{where}: {error}") from error
    if document is not None:
        yield document


def _messages(found: Any, where: str) -> list[Message]:
    messages = found.get("messages") if isinstance(found, dict) else None
    if messages is None and isinstance(found, dict) and isinstance(found.get("prompt"), str):
        messages = [{"role": "user", "content": found["prompt"]}]
    sound = isinstance(messages, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
        for one in messages
    )
    if not sound:
        raise BadText(f"{where}: neither messages with role and content, nor prompt and answer, nor text")
    assert isinstance(messages, list)
    if isinstance(found.get("answer"), str):
        messages = [*messages, {"role": "assistant", "content": found["answer"]}]
    return messages
