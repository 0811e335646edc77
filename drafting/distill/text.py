"""Training text: plain files or conversations, as token ids of which some are the model's own answers.

A conversation is written with the model's chat template. What stands between the prompt that a device would send and
the end of the assistant's turn is the answer; the two are tokenised apart, as they are when the model itself answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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


class Writer:
    """Conversations and plain text to documents, with a model's own tokenizer and chat template."""

    def __init__(self, tokenizer: Any, longest: int) -> None:
        """`longest`: tokens of a document; what is longer is cut into several (plain text) or left out."""
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
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise BadText(f"{model} has no tokenizer that can be read: {error}") from error

    def plain(self, text: str) -> Iterator[Document]:
        """Documents of a text without turns: all of it but the first token is as good as an answer."""
        ids = list(self._tokenizer.encode(text))
        for start in range(0, len(ids), self._longest):
            part = np.array(ids[start : start + self._longest], dtype=np.int32)
            own = np.ones(len(part), dtype=bool)
            own[0] = False
            yield Document(part, own)

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


def documents(path: Path, writer: Writer) -> Iterator[Document]:
    """The documents of one file: `.jsonl` with one conversation or text a line, anything else plain text.

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


def _of_line(line: str, where: str, writer: Writer) -> Iterator[Document]:
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
