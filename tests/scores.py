"""Prompts that are scored, and the check of their scores against transformers' log-softmax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from oracle import oracle_logits, tolerance

from device_agent.answering.answer import ServedChain, answer
from wire.messages import AnyMessage
from wire.request_messages import Accepted, Delta, Done, Generate, PromptToken, Sampling, Scored

TOP = 3


async def said_to(
    model: ServedChain,
    ids: tuple[int, ...],
    heard: Callable[[AnyMessage], None] = lambda message: None,
    **changed: Any,
) -> list[AnyMessage]:
    """All that an agent says to a greedy request for one token and the scores of its prompt."""
    asked = Generate(1, "id", "demo", "", list(ids), 1, 1, echo=True, logprobs=TOP, prompt_logprobs=TOP)
    said: list[AnyMessage] = []

    def post(message: AnyMessage) -> None:
        said.append(message)
        heard(message)

    await answer(model, msgspec.structs.replace(asked, **{"sampling": Sampling(temperature=0.0), **changed}), post)
    assert isinstance(said[0], Accepted) and isinstance(said[-1], Done)
    return said


def scored_in(said: list[AnyMessage], choice: int = 0) -> list[PromptToken]:
    """The scores told for a choice, all of them before anything else of it."""
    order = [each for each in said if isinstance(each, (Scored, Delta)) and each.index == choice]
    pieces = [each for each in order if isinstance(each, Scored)]
    assert order[: len(pieces)] == pieces
    return [token for piece in pieces for token in piece.tokens]


def check_scores(told: list[PromptToken], path: Path, ids: tuple[int, ...]) -> None:
    """Every token has transformers' log-probability and rank, and the likeliest alternatives are its too."""
    logits = oracle_logits(path, ids)
    truth, close = logits.log_softmax(-1), tolerance(logits)
    assert [each.token.id for each in told] == list(ids)
    assert (told[0].rank, told[0].top) == (0, [])
    for at, each in enumerate(told[1:]):
        row, own = truth[at], float(truth[at, ids[at + 1]])
        assert abs(each.token.logprob - own) < close
        assert int((row > own + close).sum()) < each.rank <= int((row >= own - close).sum())
        best = torch.tensor([other.logprob for other in each.top])
        assert float((best - row.topk(TOP).values).abs().max()) < close
        assert all(abs(float(row[other.id]) - other.logprob) < close for other in each.top)
