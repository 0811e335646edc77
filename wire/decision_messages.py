"""Between gateway and agent: questions about one conversation, and how likely each of their options is.

A ``Decide`` is answered as a prompt is: accepted, each question once, done.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from wire.message import Count, Message, Name, Number
from wire.text_messages import ChatTurn

MAX_QUESTIONS: Final = 400
MAX_OPTIONS: Final = 255
"""Of one question. Both numbers are OpenAI's."""

QUESTIONS_AT_ONCE: Final = 8
"""Questions of a request that run side by side: each of them holds the conversation's keys and values once."""


class Question(msgspec.Struct, frozen=True, array_like=True):
    """``text`` is said behind the conversation; one of ``options`` is the answer."""

    text: str
    options: Annotated[list[str], msgspec.Meta(min_length=2, max_length=MAX_OPTIONS)]


class Decide(Message, frozen=True, tag=46):
    """Say how likely each option of each question is. The text of a question goes on in the last of the ``turns``, and
    the assistant's answer follows. ``at_once``: so many questions at most run side by side; 0: as many as ever do.
    ``tenant`` and ``traceparent`` as in ``Generate``."""

    request: Number
    request_id: Name
    model: Name
    turns: Annotated[list[ChatTurn], msgspec.Meta(min_length=1)]
    questions: Annotated[list[Question], msgspec.Meta(min_length=1, max_length=MAX_QUESTIONS)]
    at_once: Count = 0
    tenant: Name = ""
    traceparent: Name = ""


class Decided(Message, frozen=True, tag=47):
    """How likely the options of question ``index`` are, in their order; together 1. It ends this question."""

    request: Number
    index: Count
    chances: Annotated[list[float], msgspec.Meta(min_length=2, max_length=MAX_OPTIONS)]
