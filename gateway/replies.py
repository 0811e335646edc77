"""The objects clients get, exactly as OpenAI's schema has them: events in, objects out. Pure.

Rules that hold for every stream: one ``id`` and ``created`` for all chunks; the first chunk of a chat choice has the
role and nothing else, its last an empty delta and the reason to finish; no chunk in between has an empty text; with
``include_usage`` every chunk but the last has ``usage`` null and the last has no choices.

Members that may be null are there as null. A log-probability JSON cannot say becomes ``LEAST_LOGPROB``, as at OpenAI.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from msgspec import UNSET, UnsetType

from gateway.answer import Complete, Event
from gateway.reply_schema import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    Chunk,
    ChunkChoice,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    ContentLogprob,
    FinishReason,
    Heading,
    TopLogprob,
    Usage,
)
from wire.messages import Alternative, Delta, Finished, TokenLogprob

LEAST_LOGPROB: Final = -9999.0


class Shape(Protocol):
    """How one endpoint's answers look. ``chunks`` is for streams, ``absorb`` and ``whole`` are for one reply."""

    def opening(self, choices: Sequence[int]) -> Sequence[Chunk]:
        """The chunks that come before any text."""

    def chunks(self, events: Iterable[Event]) -> Sequence[Chunk]:
        """The chunks that tell these events."""

    def absorb(self, events: Iterable[Event]) -> None:
        """Keep these events for ``whole``."""

    def whole(self) -> ChatCompletion | Completion:
        """The one reply that tells all events absorbed, which end with ``Complete``."""


class _Gathered:
    """One choice of a reply as it grows."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.reason: FinishReason = "stop"


class _Base:
    """What both shapes do alike: gather events by choice, keep log-probabilities until there is text for them."""

    def __init__(self, heading: Heading, choices: int, logprobs: bool) -> None:
        self._heading = heading
        self._logprobs = logprobs
        self._gathered = [_Gathered() for _ in range(choices)]
        self._held: dict[int, list[TokenLogprob]] = {}
        self._complete = Complete(0, 0)
        self._usage: UnsetType | None = None if heading.include_usage else UNSET

    def absorb(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Delta):
                choice = self._gathered[event.index]
                choice.texts.append(event.text)
                choice.logprobs.extend(event.logprobs or ())
            elif isinstance(event, Finished):
                self._gathered[event.index].reason = event.reason
            else:
                self._complete = event

    def _due(self, index: int, new: list[TokenLogprob] | None) -> list[TokenLogprob] | None:
        """The log-probabilities to send with a text: those held for it and the new ones."""
        if not self._logprobs:
            return None
        return self._held.pop(index, []) + (new or [])

    def _hold(self, delta: Delta) -> None:
        if self._logprobs and delta.logprobs:
            self._held.setdefault(delta.index, []).extend(delta.logprobs)


class ChatShape(_Base):
    """Chat completions and their chunks."""

    def opening(self, choices: Sequence[int]) -> list[ChatChunk]:
        return [self._chunk(ChunkChoice(index, ChatDelta(role="assistant", content=""))) for index in choices]

    def chunks(self, events: Iterable[Event]) -> list[ChatChunk]:
        out = []
        for event in events:
            if isinstance(event, Delta):
                if event.text:
                    logprobs = chat_logprobs(self._due(event.index, event.logprobs))
                    out.append(self._chunk(ChunkChoice(event.index, ChatDelta(content=event.text), logprobs)))
                else:
                    self._hold(event)
            elif isinstance(event, Finished):
                last = chat_logprobs(self._due(event.index, None) or None)
                out.append(self._chunk(ChunkChoice(event.index, ChatDelta(), last, event.reason)))
            elif self._heading.include_usage:
                head = self._heading
                out.append(ChatChunk(head.id, _CHAT_CHUNK, head.created, head.model, [], usage_of(event)))
        return out

    def whole(self) -> ChatCompletion:
        choices = [
            ChatChoice(
                index,
                ChatAnswer("assistant", "".join(each.texts)),
                chat_logprobs(each.logprobs) if self._logprobs else None,
                each.reason,
            )
            for index, each in enumerate(self._gathered)
        ]
        head = self._heading
        return ChatCompletion(head.id, "chat.completion", head.created, head.model, choices, usage_of(self._complete))

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        head = self._heading
        return ChatChunk(head.id, _CHAT_CHUNK, head.created, head.model, [choice], self._usage)


class CompletionShape(_Base):
    """Text completions, whole and in chunks."""

    def __init__(self, heading: Heading, choices: int, logprobs: bool) -> None:
        super().__init__(heading, choices, logprobs)
        self._offsets = [0] * choices

    def opening(self, choices: Sequence[int]) -> list[Completion]:
        return []

    def chunks(self, events: Iterable[Event]) -> list[Completion]:
        out = []
        for event in events:
            if isinstance(event, Delta):
                if event.text:
                    logprobs = self._logprobs_at(event.index, event.text, self._due(event.index, event.logprobs))
                    out.append(self._chunk(CompletionChoice(event.text, event.index, logprobs)))
                else:
                    self._hold(event)
            elif isinstance(event, Finished):
                last = self._logprobs_at(event.index, "", self._due(event.index, None) or None)
                out.append(self._chunk(CompletionChoice("", event.index, last, event.reason)))
            elif self._heading.include_usage:
                head = self._heading
                out.append(Completion(head.id, _TEXT, head.created, head.model, [], usage_of(event)))
        return out

    def whole(self) -> Completion:
        choices = []
        for index, each in enumerate(self._gathered):
            text = "".join(each.texts)
            logprobs = self._logprobs_at(index, text, each.logprobs if self._logprobs else None)
            choices.append(CompletionChoice(text, index, logprobs, each.reason))
        head = self._heading
        return Completion(head.id, _TEXT, head.created, head.model, choices, usage_of(self._complete))

    def _logprobs_at(self, index: int, text: str, tokens: list[TokenLogprob] | None) -> CompletionLogprobs | None:
        """The log-probabilities of ``tokens``, which end where ``text`` ends: an echoed prompt comes before them."""
        end = self._offsets[index] = self._offsets[index] + len(text)
        return None if tokens is None else completion_logprobs(tokens, end)

    def _chunk(self, choice: CompletionChoice) -> Completion:
        head = self._heading
        return Completion(head.id, _TEXT, head.created, head.model, [choice], self._usage)


_CHAT_CHUNK: Final = "chat.completion.chunk"
_TEXT: Final = "text_completion"


def usage_of(complete: Complete) -> Usage:
    """OpenAI's usage object."""
    prompt, generated = complete.prompt_tokens, complete.completion_tokens
    return Usage(prompt, generated, prompt + generated)


def chat_logprobs(tokens: Sequence[TokenLogprob] | None) -> ChatLogprobs | None:
    """Log-probabilities as chat replies have them."""
    if tokens is None:
        return None
    return ChatLogprobs([ContentLogprob(*_told(each.chosen), _tops(each.top)) for each in tokens])


def completion_logprobs(tokens: Sequence[TokenLogprob], end: int) -> CompletionLogprobs:
    """Log-probabilities as completions have them, the last token ending at character ``end`` of the choice's text.

    The chosen token is always among the alternatives, so there may be one more than was asked for.
    """
    offset = max(0, end - sum(len(each.chosen.text) for each in tokens))
    offsets, tops = [], []
    for each in tokens:
        offsets.append(offset)
        offset += len(each.chosen.text)
        top = {other.text: sayable(other.logprob) for other in each.top}
        top.setdefault(each.chosen.text, sayable(each.chosen.logprob))
        tops.append(top)
    texts = [each.chosen.text for each in tokens]
    return CompletionLogprobs(texts, [sayable(each.chosen.logprob) for each in tokens], tops, offsets)


def sayable(logprob: float) -> float:
    """A log-probability that JSON can carry."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def _tops(alternatives: Sequence[Alternative]) -> list[TopLogprob]:
    return [TopLogprob(*_told(each)) for each in alternatives]


def _told(token: Alternative) -> tuple[str, float, list[int]]:
    return token.text, sayable(token.logprob), list(token.raw)
