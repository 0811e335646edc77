"""What a client wants to have decided, and whether it is of a size that can be answered at all. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.decisions.schema import AnyQuestion
from gateway.errors import RequestError
from gateway.prompt_sizes import TextSize, bytes_of, bytes_of_prompt, size_of_prompt
from wire.decision_messages import QUESTIONS_AT_ONCE, Decide, Decided, Question
from wire.request_messages import ServedModel
from wire.text_messages import ChatTurn


@dataclass(frozen=True)
class DecisionAsk:
    """Questions about one conversation; the members of ``AnyAsk`` are as there.

    Attributes:
        turns: the conversation, in whose last turn every question goes on.
        questions: as the client asked them. asked: as the model is asked them, in the same order.
    """

    model: str | None
    turns: tuple[ChatTurn, ...]
    questions: tuple[AnyQuestion, ...]
    asked: tuple[Question, ...]
    tenant: str = ""

    endpoint = "decisions"
    draft = ""
    scored_by = ""
    stream = False
    parts = 1
    priority = 0
    ends = Decided

    @property
    def task(self) -> Literal["generate"]:
        return "generate"

    @property
    def choices(self) -> int:
        return len(self.asked)

    @property
    def at_once(self) -> int:
        return min(QUESTIONS_AT_ONCE, len(self.asked))

    @property
    def characters(self) -> int:
        """Of the conversation and all questions."""
        return size_of_prompt(list(self.turns)).characters + sum(len(each.text) for each in self.asked)

    def choices_of(self, part: int) -> range:
        return range(len(self.asked))

    def most_bytes(self, part: int) -> int:
        questions = sum(bytes_of(each.text) + sum(map(bytes_of, each.options)) for each in self.asked)
        return bytes_of_prompt(list(self.turns)) + questions

    def message(self, part: int, number: int, request_id: str, model: str, at_once: int) -> Decide:
        return Decide(number, request_id, model, list(self.turns), list(self.asked), at_once, self.tenant)

    def refused_by(self, model: ServedModel, max_total_tokens: int) -> RequestError | None:
        if not model.decides:
            told = "the devices that serve this model do not answer questions: ask /v1/chat/completions"
            return RequestError(400, told, code="unsupported_value", param="model")
        size = size_of_prompt(list(self.turns))
        if (message := size.too_long("the input", model.max_positions, model)) is not None:
            return RequestError(400, message, code="context_length_exceeded", param="input")
        if (tokens := TextSize(self.characters).least_tokens) > max_total_tokens:
            told = f"input and questions have {tokens} tokens or more, and one request may have {max_total_tokens}"
            return RequestError(400, f"{told}: ask fewer at once", code="invalid_value", param="questions")
        return None
