"""Questions about one conversation, and how likely transformers says their options are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any

import pytest
from oracle import oracle_logits
from transformers import AutoTokenizer

from device_agent.answering.answer import ServedChain
from device_agent.answering.deciding import decide
from wire.decision_messages import Decide, Decided, Question
from wire.messages import AnyMessage
from wire.request_messages import Accepted, Done
from wire.text_messages import ChatTurn

TURNS = [
    ChatTurn("system", "You read letters."),
    ChatTurn("user", "My order came late, and the box was torn. I want 12 dollars back.\n\n"),
]
QUESTIONS = [
    Question("Is this true? The box was torn.\nAnswer with yes or no.", ["yes", "no"]),
    Question("How angry?\n- 0: not\n- 1: a bit\n- 2: very", ["0", "1", "2"]),
    Question(
        "Which?\n- new\n- new order\n- new order form\n- refund", ["new", "new order", "new order form", "refund"]
    ),
    Question("What came late?", ["the order", "the box", "the dollars", "nothing", "12 dollars"]),
    Question("Once more: was it late?", ["yes", "no"]),
]


async def told(
    model: ServedChain, heard: Callable[[AnyMessage], None] = lambda message: None, **changed: Any
) -> tuple[list[list[float]], Done]:
    """The chances of each question's options, and the last message."""
    asked = Decide(
        **{"request": 1, "request_id": "id", "model": "m", "turns": TURNS, "questions": QUESTIONS, **changed}
    )
    said: list[AnyMessage] = []

    def post(message: AnyMessage) -> None:
        said.append(message)
        heard(message)

    await decide(model, asked, post)
    found = {each.index: each.chances for each in said if isinstance(each, Decided)}
    accepted, done = said[0], said[-1]
    assert isinstance(accepted, Accepted) and isinstance(done, Done) and len(said) == 2 + len(asked.questions)
    assert accepted.prompt_tokens == done.prompt_tokens and not done.completion_tokens
    return [found[at] for at in range(len(asked.questions))], done


def check_chances(
    found: Sequence[Sequence[float]],
    path: Path,
    turns: Sequence[ChatTurn] = TURNS,
    questions: Sequence[Question] = QUESTIONS,
) -> None:
    """Each is what transformers says of a chat whose last message has the question in it."""
    for question, chances in zip(questions, found, strict=True):
        assert chances == pytest.approx(oracle_chances(path, turns, question), abs=1e-4)
        assert sum(chances) == pytest.approx(1)


def oracle_chances(path: Path, turns: Sequence[ChatTurn], question: Question) -> list[float]:
    """Each option's text, told by itself behind the whole chat."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    said = [{"role": each.role, "content": each.content} for each in turns]
    said[-1]["content"] += question.text
    ids = tuple(tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False))
    begun = {}
    for text in question.options:
        option = tuple(tokenizer.encode(text, add_special_tokens=False))
        truth = oracle_logits(path, ids + option).double().log_softmax(-1)
        begun[option] = exp(sum(float(truth[len(ids) - 1 + at, token]) for at, token in enumerate(option)))
    left = dict(begun)
    for option, chance in begun.items():
        line = sorted((each for each in begun if option[: len(each)] == each), key=len)
        for shorter, longer in pairwise(line):
            if longer == option:
                left[shorter] -= chance
    return [each / sum(left.values()) for each in left.values()]
