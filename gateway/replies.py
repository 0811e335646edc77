"""The objects clients get, exactly as OpenAI's schema has them: events in, objects out. Pure.

Rules that hold for every stream: one ``id`` and ``created`` for all chunks; the first chunk of a chat choice has the
role and nothing else, its last an empty delta and the reason to finish; no chunk in between has an empty text; with
``include_usage`` every chunk but the last has ``usage`` null and the last has no choices.

Members that may be null are there as null. A log-probability JSON cannot say becomes ``LEAST_LOGPROB``, as at OpenAI.
``timings`` is there with the usage where a cloud took part and there is one choice: several run side by side, and only
the token socket has those of each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from msgspec import UNSET, UnsetType

from gateway.answer import Complete, Event
from gateway.reply_schema import (
    AnswerTimings,
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
    CompletionDetails,
    CompletionLogprobs,
    ContentLogprob,
    FinishReason,
    Heading,
    PromptDetails,
    RoundsSpent,
    TimeSpent,
    TopLogprob,
    Usage,
)
from wire.messages import Alternative, Delta, Finished, Spent, Timings, TokenLogprob

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
        self.reason: FinishReason = "stop"


class _Base(ABC):
    """What both shapes do alike: gather events by choice, keep log-probabilities until there is text for them."""

    def __init__(self, heading: Heading, choices: int, logprobs: bool) -> None:
        self._heading = heading
        self._logprobs = logprobs
        self._gathered = [_Gathered() for _ in range(choices)]
        self._complete = Complete(0, 0)
        self._timings: AnswerTimings | UnsetType = UNSET
        self._usage: UnsetType | None = None if heading.include_usage else UNSET

    def absorb(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Delta):
                self._gathered[event.index].texts.append(event.text)
                self._keep(event)
            elif isinstance(event, Finished):
                self._gathered[event.index].reason = event.reason
                self._time(event)
            else:
                self._complete = event

    def _time(self, finished: Finished) -> None:
        """Keep where the time of the only choice went."""
        if len(self._gathered) == 1:
            self._timings = timings_of(finished.timings)

    @abstractmethod
    def _keep(self, delta: Delta) -> None:
        """Add a delta's log-probabilities to those of its choice that were not sent yet."""


class ChatShape(_Base):
    """Chat completions and their chunks."""

    def __init__(self, heading: Heading, choices: int, logprobs: bool) -> None:
        super().__init__(heading, choices, logprobs)
        self._kept: list[list[ContentLogprob]] = [[] for _ in range(choices)]

    def opening(self, choices: Sequence[int]) -> list[ChatChunk]:
        return [self._chunk(ChunkChoice(index, ChatDelta(role="assistant", content=""))) for index in choices]

    def chunks(self, events: Iterable[Event]) -> list[ChatChunk]:
        out = []
        for event in events:
            if isinstance(event, Delta):
                self._keep(event)
                if event.text:
                    logprobs = self._due(event.index)
                    out.append(self._chunk(ChunkChoice(event.index, ChatDelta(content=event.text), logprobs)))
            elif isinstance(event, Finished):
                last = self._due(event.index) if self._kept[event.index] else None
                out.append(self._chunk(ChunkChoice(event.index, ChatDelta(), last, event.reason)))
                self._time(event)
            elif self._heading.include_usage:
                head, usage = self._heading, usage_of(event)
                out.append(ChatChunk(head.id, _CHAT_CHUNK, head.created, head.model, [], usage, self._timings))
        return out

    def whole(self) -> ChatCompletion:
        choices = [
            ChatChoice(index, ChatAnswer("assistant", "".join(each.texts)), self._due(index), each.reason)
            for index, each in enumerate(self._gathered)
        ]
        head, usage = self._heading, usage_of(self._complete)
        return ChatCompletion(head.id, _CHAT, head.created, head.model, choices, usage, self._timings)

    def _keep(self, delta: Delta) -> None:
        if self._logprobs and delta.logprobs:
            self._kept[delta.index] += content_logprobs(delta.logprobs)

    def _due(self, index: int) -> ChatLogprobs | None:
        """The log-probabilities not sent yet, None when none were asked for."""
        due, self._kept[index] = self._kept[index], []
        return ChatLogprobs(due) if self._logprobs else None

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        head = self._heading
        return ChatChunk(head.id, _CHAT_CHUNK, head.created, head.model, [choice], self._usage)


class CompletionShape(_Base):
    """Text completions, whole and in chunks."""

    def __init__(self, heading: Heading, choices: int, logprobs: bool) -> None:
        super().__init__(heading, choices, logprobs)
        self._lengths = [0] * choices
        self._kept = [CompletionLogprobs([], [], [], []) for _ in range(choices)]

    def opening(self, choices: Sequence[int]) -> list[Completion]:
        return []

    def chunks(self, events: Iterable[Event]) -> list[Completion]:
        out = []
        for event in events:
            if isinstance(event, Delta):
                self._keep(event)
                if event.text:
                    out.append(self._chunk(CompletionChoice(event.text, event.index, self._due(event.index))))
            elif isinstance(event, Finished):
                last = self._due(event.index) if self._kept[event.index].tokens else None
                out.append(self._chunk(CompletionChoice("", event.index, last, event.reason)))
                self._time(event)
            elif self._heading.include_usage:
                head, usage = self._heading, usage_of(event)
                out.append(Completion(head.id, _TEXT, head.created, head.model, [], usage, self._timings))
        return out

    def whole(self) -> Completion:
        choices = [
            CompletionChoice("".join(each.texts), index, self._due(index), each.reason)
            for index, each in enumerate(self._gathered)
        ]
        head, usage = self._heading, usage_of(self._complete)
        return Completion(head.id, _TEXT, head.created, head.model, choices, usage, self._timings)

    def _keep(self, delta: Delta) -> None:
        start = self._lengths[delta.index]
        self._lengths[delta.index] = end = start + len(delta.text)
        if self._logprobs and delta.logprobs:
            new, kept = completion_logprobs(delta.logprobs, start, end), self._kept[delta.index]
            kept.tokens.extend(new.tokens)
            kept.token_logprobs.extend(new.token_logprobs)
            kept.top_logprobs.extend(new.top_logprobs)
            kept.text_offset.extend(new.text_offset)

    def _due(self, index: int) -> CompletionLogprobs | None:
        """The log-probabilities not sent yet, None when none were asked for."""
        due, self._kept[index] = self._kept[index], CompletionLogprobs([], [], [], [])
        return due if self._logprobs else None

    def _chunk(self, choice: CompletionChoice) -> Completion:
        head = self._heading
        return Completion(head.id, _TEXT, head.created, head.model, [choice], self._usage)


_CHAT: Final = "chat.completion"
_CHAT_CHUNK: Final = "chat.completion.chunk"
_TEXT: Final = "text_completion"


def usage_of(complete: Complete) -> Usage:
    """OpenAI's usage object."""
    prompt, generated = complete.prompt_tokens, complete.completion_tokens
    cached = PromptDetails(complete.cached_tokens) if complete.cached_tokens else UNSET
    drafted: CompletionDetails | UnsetType = UNSET
    if complete.proposed:
        drafted = CompletionDetails(complete.accepted, complete.proposed - complete.accepted)
    return Usage(prompt, generated, prompt + generated, cached, drafted)


def timings_of(timings: Timings | None) -> AnswerTimings | UnsetType:
    """Where an answer's time went, as clients are told; nothing where it is not known."""
    if timings is None:
        return UNSET
    return AnswerTimings(TimeSpent(*_ms(timings.prompt)), RoundsSpent(*_ms(timings.decode), timings.rounds))


def content_logprobs(tokens: Iterable[TokenLogprob]) -> list[ContentLogprob]:
    """Log-probabilities as chat replies have them."""
    return [ContentLogprob(*_told(each.chosen), _tops(each.top)) for each in tokens]


def completion_logprobs(tokens: Iterable[TokenLogprob], start: int, end: int) -> CompletionLogprobs:
    """Log-probabilities as completions have them, of tokens whose text begins at character ``start`` of the choice's
    and may go no further than ``end``: pieces of one character are longer than it, and a stop text is cut off.

    The chosen token is always among the alternatives, so there may be one more than was asked for.
    """
    told = CompletionLogprobs([], [], [], [])
    for each in tokens:
        told.tokens.append(each.chosen.text)
        told.token_logprobs.append(sayable(each.chosen.logprob))
        top = {other.text: sayable(other.logprob) for other in each.top}
        top.setdefault(each.chosen.text, sayable(each.chosen.logprob))
        told.top_logprobs.append(top)
        told.text_offset.append(min(start, end))
        start += len(each.chosen.text)
    return told


def sayable(logprob: float) -> float:
    """A log-probability that JSON can carry."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def _ms(spent: Spent) -> tuple[float, float, float, float]:
    return spent.device_us / 1e3, spent.link_us / 1e3, spent.queue_us / 1e3, spent.step_us / 1e3


def _tops(alternatives: Sequence[Alternative]) -> list[TopLogprob]:
    return [TopLogprob(*_told(each)) for each in alternatives]


def _told(token: Alternative) -> tuple[str, float, list[int]]:
    return token.text, sayable(token.logprob), list(token.raw)
