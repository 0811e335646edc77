"""What clients send to ``/v1/decisions`` and what they get, as openai-python's ``decisions.create`` has it.

Unknown members are ignored, as elsewhere; so are ``safety_identifier``, ``prompt_cache_key`` and
``prompt_cache_options``. ``input``, ``content``, ``instructions`` and ``output`` are texts or lists of parts; they stay
raw at first, see ``openai_schema``.
"""

from __future__ import annotations

from typing import Annotated, Final, Union

import msgspec
from msgspec import Meta

from gateway.openai_schema import NULL, Label
from wire.decision_messages import MAX_OPTIONS, MAX_QUESTIONS

MAX_WORDS: Final = 1024
"""Characters of a choice or a label."""

Word = Annotated[str, Meta(min_length=1, max_length=MAX_WORDS)]
Value = Union[Word, bool]


class Predicate(msgspec.Struct, tag_field="type", tag="predicate", gc=False):
    """Whether a statement about the input is true."""

    instructions: msgspec.Raw
    name: Label | None = None


class ChoiceOption(msgspec.Struct, gc=False):
    """One that may be chosen."""

    value: Value
    description: str | None = None


class Choice(msgspec.Struct, tag_field="type", tag="choice", gc=False):
    """Which of some values holds."""

    instructions: msgspec.Raw
    choices: Annotated[list[ChoiceOption], Meta(min_length=2, max_length=MAX_OPTIONS)]
    name: Label | None = None


class Level(msgspec.Struct, gc=False):
    """One of a scale's; its number is its place, from 0 on."""

    label: Word
    description: str | None = None


class Score(msgspec.Struct, tag_field="type", tag="score", gc=False):
    """Where on a scale the input is, its levels in order."""

    instructions: msgspec.Raw
    levels: Annotated[list[Level], Meta(min_length=2, max_length=MAX_OPTIONS)]
    name: Label | None = None


AnyQuestion = Union[Predicate, Choice, Score]


class DecisionBody(msgspec.Struct, kw_only=True):
    """POST /v1/decisions."""

    input: msgspec.Raw
    questions: Annotated[list[AnyQuestion], Meta(min_length=1, max_length=MAX_QUESTIONS)]
    model: Label | None = None


class Item(msgspec.Struct, gc=False):
    """A message, a call of a tool, or what it gave; which members it needs depends on the type."""

    type: Label = "message"
    role: Label = ""
    content: msgspec.Raw = NULL
    call_id: Label = ""
    name: Label = ""
    arguments: str = ""
    input: str = ""
    output: msgspec.Raw = NULL


class Part(msgspec.Struct, gc=False):
    """A part of a text: ``text``, of a refusal ``refusal``, of JSON ``data``."""

    type: Label
    text: str | None = None
    refusal: str | None = None
    data: msgspec.Raw = NULL


class PredicateAnswer(msgspec.Struct, tag_field="type", tag="predicate", frozen=True):
    """How likely the statement is true."""

    name: str | None
    probability: float


class ChoiceChance(msgspec.Struct, frozen=True):
    """How likely a value is."""

    probability: float
    value: str | bool


class ChoiceAnswer(msgspec.Struct, tag_field="type", tag="choice", frozen=True):
    """The likeliest value, and how likely each is; ``confidence`` is the likeliest one's chance."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceChance]


class LevelChance(msgspec.Struct, frozen=True):
    """How likely a level is."""

    label: str
    probability: float
    value: int


class ScoreAnswer(msgspec.Struct, tag_field="type", tag="score", frozen=True):
    """The expected number of the level, and how likely each is; ``confidence`` is the likeliest one's chance."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelChance]


class InputDetails(msgspec.Struct, frozen=True):
    """Tokens that were kept from before, or for later: none."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Tokens that were thought: none."""

    reasoning_tokens: int = 0


class DecisionUsage(msgspec.Struct, frozen=True):
    """Tokens of the input, counted once, and of all questions. None are generated."""

    input_tokens: int
    total_tokens: int
    output_tokens: int = 0
    input_tokens_details: InputDetails = InputDetails()
    output_tokens_details: OutputDetails = OutputDetails()


class DecisionReply(msgspec.Struct, frozen=True):
    """The answers, in the order of the questions."""

    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    model: str
    usage: DecisionUsage
