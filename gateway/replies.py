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
from typing import Any, ClassVar, Final, Generic, TypeVar

from msgspec import UNSET, UnsetType

from gateway.answer import Complete, Event
from gateway.reply_schema import (
    AnswerTimings,
    ChatAnswer,
    ChatChoice,
    ChatDelta,
    ChatLogprobs,
    ChunkChoice,
    CompletionChoice,
    CompletionDetails,
    CompletionLogprobs,
    ContentLogprob,
    FinishReason,
    Heading,
    PromptDetails,
    Reply,
    RoundsSpent,
    TimeSpent,
    TopLogprob,
    Usage,
)
from wire.request_messages import Alternative, Delta, Finished, Spent, Timings, TokenLogprob

LEAST_LOGPROB: Final = -9999.0

Part = TypeVar("Part", ChunkChoice, CompletionChoice)
Whole = TypeVar("Whole", ChatChoice, CompletionChoice)


class _Gathered:
    """One choice of a reply as it grows."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reason: FinishReason = "stop"


class Shape(ABC, Generic[Part, Whole]):
    """How one endpoint's answers look: ``chunks`` is for streams, ``absorb`` and ``whole`` are for one reply.
    Log-probabilities are kept by choice until there is text for them."""

    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, heading: Heading, choices: int, logprobs: bool) -> None:
        self._heading = heading
        self._logprobs = logprobs
        self._gathered = [_Gathered() for _ in range(choices)]
        self._complete = Complete(0, 0)
        self._timings: AnswerTimings | UnsetType = UNSET
        self._usage: UnsetType | None = None if heading.include_usage else UNSET

    def opening(self, choices: Sequence[int]) -> Sequence[Reply[Part]]:
        """The chunks that come before any text."""
        return []

    def chunks(self, events: Iterable[Event]) -> list[Reply[Part]]:
        """The chunks that tell these events."""
        out = []
        for event in events:
            if isinstance(event, Delta):
                self._keep(event)
                if event.text:
                    out.append(self._chunk(self._part(event.index, event.text, None)))
            elif isinstance(event, Finished):
                out.append(self._chunk(self._part(event.index, "", event.reason)))
                self._time(event)
            elif self._heading.include_usage:
                out.append(self._answer(self.chunk_kind, [], usage_of(event)))
        return out

    def absorb(self, events: Iterable[Event]) -> None:
        """Keep these events for ``whole``."""
        for event in events:
            if isinstance(event, Delta):
                self._gathered[event.index].texts.append(event.text)
                self._keep(event)
            elif isinstance(event, Finished):
                self._gathered[event.index].reason = event.reason
                self._time(event)
            else:
                self._complete = event

    def whole(self) -> Reply[Whole]:
        """The one reply that tells all events absorbed, which end with ``Complete``."""
        choices = [self._choice(at, "".join(each.texts), each.reason) for at, each in enumerate(self._gathered)]
        return self._answer(self.whole_kind, choices, usage_of(self._complete))

    def _chunk(self, part: Part) -> Reply[Part]:
        head = self._heading
        return Reply(head.id, self.chunk_kind, head.created, head.model, [part], self._usage)

    def _answer(self, kind: str, choices: list[Any], usage: Usage) -> Reply[Any]:
        head = self._heading
        return Reply(head.id, kind, head.created, head.model, choices, usage, self._timings)

    def _time(self, finished: Finished) -> None:
        """Keep where the time of the only choice went."""
        if len(self._gathered) == 1:
            self._timings = timings_of(finished.timings)

    @abstractmethod
    def _keep(self, delta: Delta) -> None:
        """Add a delta's log-probabilities to those of its choice that were not sent yet."""

    @abstractmethod
    def _part(self, index: int, text: str, reason: FinishReason | None) -> Part:
        """What is new of a choice, with the log-probabilities due; at its end ``reason``, and those only where there
        are any."""

    @abstractmethod
    def _choice(self, index: int, text: str, reason: FinishReason) -> Whole:
        """A whole choice, with the log-probabilities due."""


class ChatShape(Shape[ChunkChoice, ChatChoice]):
    """Chat completions and their chunks."""

    whole_kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, heading: Heading, choices: int, logprobs: bool) -> None:
        super().__init__(heading, choices, logprobs)
        self._kept: list[list[ContentLogprob]] = [[] for _ in range(choices)]

    def opening(self, choices: Sequence[int]) -> list[Reply[ChunkChoice]]:
        return [self._chunk(ChunkChoice(index, ChatDelta(role="assistant", content=""))) for index in choices]

    def _keep(self, delta: Delta) -> None:
        if self._logprobs and delta.logprobs:
            self._kept[delta.index] += content_logprobs(delta.logprobs)

    def _due(self, index: int) -> ChatLogprobs | None:
        """The log-probabilities not sent yet, None when none were asked for."""
        due, self._kept[index] = self._kept[index], []
        return ChatLogprobs(due) if self._logprobs else None

    def _part(self, index: int, text: str, reason: FinishReason | None) -> ChunkChoice:
        due = self._due(index) if text or self._kept[index] else None
        return ChunkChoice(index, ChatDelta(content=text or None), due, reason)

    def _choice(self, index: int, text: str, reason: FinishReason) -> ChatChoice:
        return ChatChoice(index, ChatAnswer("assistant", text), self._due(index), reason)


class CompletionShape(Shape[CompletionChoice, CompletionChoice]):
    """Text completions, whole and in chunks."""

    whole_kind = chunk_kind = "text_completion"

    def __init__(self, heading: Heading, choices: int, logprobs: bool) -> None:
        super().__init__(heading, choices, logprobs)
        self._lengths = [0] * choices
        self._kept = [CompletionLogprobs([], [], [], []) for _ in range(choices)]

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

    def _part(self, index: int, text: str, reason: FinishReason | None) -> CompletionChoice:
        due = self._due(index) if text or self._kept[index].tokens else None
        return CompletionChoice(text, index, due, reason)

    def _choice(self, index: int, text: str, reason: FinishReason) -> CompletionChoice:
        return CompletionChoice(text, index, self._due(index), reason)


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

    The chosen token is always among the alternatives, so there may be one more than was asked for. Of tokens with the
    same name the likeliest is told.
    """
    told = CompletionLogprobs([], [], [], [])
    for each in tokens:
        told.tokens.append(token_name(each.chosen))
        told.token_logprobs.append(sayable(each.chosen.logprob))
        top: dict[str, float] = {}
        for other in (*each.top, each.chosen):
            top.setdefault(token_name(other), sayable(other.logprob))
        told.top_logprobs.append(top)
        told.text_offset.append(min(start, end))
        start += len(each.chosen.text)
    return told


def token_name(token: Alternative) -> str:
    """A token as completions name it: by its text, or by its bytes where those are no whole characters."""
    try:
        token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
    return token.text


def sayable(logprob: float) -> float:
    """A log-probability that JSON can carry."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def _ms(spent: Spent) -> tuple[float, float, float, float]:
    return spent.device_us / 1e3, spent.link_us / 1e3, spent.queue_us / 1e3, spent.step_us / 1e3


def _tops(alternatives: Sequence[Alternative]) -> list[TopLogprob]:
    return [TopLogprob(*_told(each)) for each in alternatives]


def _told(token: Alternative) -> tuple[str, float, list[int]]:
    return token.text, sayable(token.logprob), list(token.raw)
