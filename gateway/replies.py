"""The objects clients get, exactly as OpenAI's schema has them: events in, objects out. Pure.

Rules that hold for every stream: one ``id`` and ``created`` for all chunks; the first chunk of a chat choice has the
role and nothing else, its last an empty delta and the reason to finish; no chunk in between says nothing; a call of a
tool begins with its index, id, type and name, and then its arguments come, by its index; with
``include_usage`` every chunk but the last has ``usage`` null and the last has no choices.

Members that may be null are there as null. How log-probabilities look: ``likelihoods``.
``timings`` is there with the usage where a cloud took part and there is one choice: several run side by side, and only
the token socket has those of each. Where heads of the model may be left out, ``timings`` says how many were, always; of
several choices the most, and in a stream at the end of each choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gateway.answer import Complete, Event
from gateway.chosen_calls import Calls, call_piece
from gateway.likelihoods import completion_logprobs, content_logprobs, echoed_logprobs, prompt_logprob
from gateway.origins import origins_of
from gateway.reply_schema import (
    AnswerTimings,
    ChatAnswer,
    ChatChoice,
    ChatDelta,
    ChatLogprobs,
    ChunkChoice,
    CompletionChoice,
    CompletionLogprobs,
    ContentLogprob,
    FinishReason,
    Heading,
    PromptLogprobs,
    Reply,
    TokenOrigin,
    Usage,
)
from gateway.usage import timings_of, usage_of
from wire.request_messages import Delta, Finished, Scored, TokenLogprob


@dataclass
class _Gathered:
    """One choice of a reply as it grows: its texts, its log-probabilities and token ids that are still to be told, and
    the log-probabilities of its prompt."""

    texts: list[str] = field(default_factory=list)
    length: int = 0
    kept: list[Any] = field(default_factory=list)
    prompt: PromptLogprobs = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    origins: list[TokenOrigin] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)
    reason: FinishReason = "stop"


class Shape(ABC):
    """How one endpoint's answers look: ``chunks`` is for streams, ``absorb`` and ``whole`` are for one reply.
    Log-probabilities are kept by choice until there is text for them."""

    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(
        self,
        heading: Heading,
        choices: int,
        logprobs: bool,
        *,
        echo: bool = False,
        prompt_logprobs: bool = False,
        prompt_ids: Mapping[int, list[int]] | None = None,
        origins: bool = False,
    ) -> None:
        """logprobs: the answer's tokens', with echo the prompt's too. prompt_logprobs: the prompt's, apart. prompt_ids:
        the prompt's tokens of each choice, there with its first event; None: no token ids are told. origins: where the
        answer's tokens came from is."""
        self._heading = heading
        self._logprobs = logprobs
        self._echo = echo
        self._prompt_logprobs = prompt_logprobs
        self._prompt_ids = prompt_ids
        self._origins = origins
        self._gathered = [_Gathered() for _ in range(choices)]
        self._prompts_told: set[int] = set()
        self._complete = Complete(0, 0)
        self._timings: AnswerTimings | UnsetType = UNSET
        self._pruned: int | None = None
        self._usage: UnsetType | None = None if heading.include_usage else UNSET

    def opening(self, choices: Sequence[int]) -> Sequence[Reply[Any]]:
        """Return the chunks that come before any text."""
        return []

    def chunks(self, events: Iterable[Event]) -> list[Reply[Any]]:
        """Return the chunks that tell these events."""
        out = []
        for event in events:
            if isinstance(event, (Delta, Scored)):
                self._keep(event)
                if event.text or (isinstance(event, Delta) and (event.reasoning or event.call)):
                    out.append(self._chunk(event.index, self._part(event, self._due(event.index))))
            elif isinstance(event, Finished):
                due = self._due(event.index) if self._gathered[event.index].kept else None
                chunk = self._chunk(event.index, self._last(event, due))
                pruned = event.heads_pruned
                out.append(chunk if pruned is None else replace(chunk, timings=AnswerTimings(heads_pruned=pruned)))
                self._time(event)
            elif isinstance(event, Complete) and self._heading.include_usage:
                out.append(self._answer(self.chunk_kind, [], usage_of(event)))
        return out

    def absorb(self, events: Iterable[Event]) -> None:
        """Keep these events for ``whole``."""
        for event in events:
            if isinstance(event, (Delta, Scored)):
                choice = self._gathered[event.index]
                choice.texts.append(event.text)
                if isinstance(event, Delta):
                    choice.thoughts.append(event.reasoning)
                    choice.calls.add(event.call)
                self._keep(event)
            elif isinstance(event, Finished):
                self._gathered[event.index].reason = event.reason
                self._time(event)
            elif isinstance(event, Complete):
                self._complete = event

    def whole(self) -> Reply[Any]:
        """Return the one reply that tells all events absorbed, which end with ``Complete``."""
        choices = [
            self._with_ids(at, self._choice(at, "".join(each.texts), self._due(at), each.reason))
            for at, each in enumerate(self._gathered)
        ]
        return self._answer(self.whole_kind, choices, usage_of(self._complete))

    def _with_ids(self, index: int, choice: Any) -> Any:
        """A choice, or what is new of it, with its tokens, and where they came from, where these are told."""
        if self._origins:
            origins, self._gathered[index].origins = self._gathered[index].origins, []
            choice = replace(choice, token_origins=origins)
        if self._prompt_ids is None:
            return choice
        ids, self._gathered[index].ids = self._gathered[index].ids, []
        return replace(choice, token_ids=ids)

    def _chunk(self, index: int, part: object) -> Reply[Any]:
        head, part = self._heading, self._with_ids(index, part)
        usage, fingerprint = self._usage, head.fingerprint
        return Reply(head.id, self.chunk_kind, head.created, head.model, [part], usage, system_fingerprint=fingerprint)

    def _answer(self, kind: str, choices: list[Any], usage: Usage) -> Reply[Any]:
        head = self._heading
        return Reply(
            head.id, kind, head.created, head.model, choices, usage, self._timings, system_fingerprint=head.fingerprint
        )

    def _time(self, finished: Finished) -> None:
        """Keep where the time of the only choice went, and the most that was left out of any: prompts of one request
        may be of different lengths, and be read by different devices."""
        said = [each for each in (self._pruned, finished.heads_pruned) if each is not None]
        self._pruned = max(said, default=None)
        timings = finished.timings if len(self._gathered) == 1 else None
        self._timings = timings_of(replace(finished, timings=timings, heads_pruned=self._pruned))

    def _keep(self, event: Delta | Scored) -> None:
        choice = self._gathered[event.index]
        start, choice.length = choice.length, choice.length + len(event.text)
        if isinstance(event, Delta):
            choice.ids += event.ids or ()
            choice.origins += origins_of(event.origins)
        if isinstance(event, Scored):
            if self._prompt_logprobs:
                choice.prompt += map(prompt_logprob, event.tokens)
            if self._logprobs and self._echo:
                choice.kept += echoed_logprobs(event.tokens)
        elif self._logprobs and event.logprobs:
            choice.kept += self._logged(event.logprobs, start + event.held, choice.length)

    def _prompt(self, index: int) -> PromptLogprobs | UnsetType:
        """The scores of a choice's prompt, where they are told apart."""
        return self._gathered[index].prompt if self._prompt_logprobs else UNSET

    def _due(self, index: int) -> Any:
        """The log-probabilities of a choice that were not told yet; None when none were asked for."""
        due, self._gathered[index].kept = self._gathered[index].kept, []
        return self._together(due) if self._logprobs else None

    @abstractmethod
    def _logged(self, tokens: Sequence[TokenLogprob], start: int, end: int) -> list[Any]:
        """Log-probabilities as they are kept; the text of their delta is ``start`` to ``end`` of its choice's."""

    @abstractmethod
    def _together(self, kept: list[Any]) -> Any:
        """Log-probabilities as a choice has them."""

    @abstractmethod
    def _part(self, event: Delta | Scored, logprobs: Any) -> object:
        """What is new of a choice in a chunk."""

    @abstractmethod
    def _last(self, event: Finished, logprobs: Any) -> object:
        """The end of a choice in a chunk."""

    @abstractmethod
    def _choice(self, index: int, text: str, logprobs: Any, reason: FinishReason) -> object:
        """A whole choice."""


class ChatShape(Shape):
    """Chat completions and their chunks."""

    whole_kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def opening(self, choices: Sequence[int]) -> list[Reply[Any]]:
        said = [self._chunk(index, ChunkChoice(index, ChatDelta(role="assistant", content=""))) for index in choices]
        return [replace(said[0], prompt_token_ids=self._ids_of_prompt()), *said[1:]]

    def _ids_of_prompt(self) -> list[int] | UnsetType:
        return UNSET if self._prompt_ids is None else self._prompt_ids.get(0, [])

    def _logged(self, tokens: Sequence[TokenLogprob], start: int, end: int) -> list[ContentLogprob]:
        return content_logprobs(tokens)

    def _together(self, kept: list[ContentLogprob]) -> ChatLogprobs:
        return ChatLogprobs(kept)

    def _part(self, event: Delta | Scored, logprobs: Any) -> ChunkChoice:
        said = ChatDelta(content=event.text or None)
        if isinstance(event, Delta) and (event.reasoning or event.call):
            call = None if event.call is None else [call_piece(event.call)]
            said = replace(said, reasoning_content=event.reasoning or None, tool_calls=call)
        return ChunkChoice(event.index, said, logprobs)

    def _last(self, event: Finished, logprobs: Any) -> ChunkChoice:
        return ChunkChoice(event.index, ChatDelta(), logprobs, event.reason)

    def whole(self) -> Reply[Any]:
        return replace(super().whole(), prompt_logprobs=self._prompt(0), prompt_token_ids=self._ids_of_prompt())

    def _choice(self, index: int, text: str, logprobs: Any, reason: FinishReason) -> ChatChoice:
        choice = self._gathered[index]
        thoughts, calls = "".join(choice.thoughts), choice.calls.made()
        content = None if not text and (thoughts or calls) else text
        answer = ChatAnswer("assistant", content, None, thoughts or UNSET, calls or UNSET)
        return ChatChoice(index, answer, logprobs, reason)


class CompletionShape(Shape):
    """Text completions, whole and in chunks."""

    whole_kind = chunk_kind = "text_completion"

    def _with_ids(self, index: int, choice: Any) -> Any:
        choice = super()._with_ids(index, choice)
        if self._prompt_ids is None or index in self._prompts_told:
            return choice
        self._prompts_told.add(index)
        return replace(choice, prompt_token_ids=self._prompt_ids.get(index, []))

    def _logged(self, tokens: Sequence[TokenLogprob], start: int, end: int) -> list[Any]:
        return completion_logprobs(tokens, start, end)

    def _together(self, kept: list[Any]) -> CompletionLogprobs:
        names, logprobs, tops, offsets = ([row[column] for row in kept] for column in range(4))
        return CompletionLogprobs(names, logprobs, tops, offsets)

    def _part(self, event: Delta | Scored, logprobs: Any) -> CompletionChoice:
        return CompletionChoice(event.text, event.index, logprobs)

    def _last(self, event: Finished, logprobs: Any) -> CompletionChoice:
        return CompletionChoice("", event.index, logprobs, event.reason)

    def _choice(self, index: int, text: str, logprobs: Any, reason: FinishReason) -> CompletionChoice:
        return CompletionChoice(text, index, logprobs, reason, self._prompt(index))
