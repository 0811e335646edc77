"""How likely a given text is: its tokens' log-probabilities, as the model would have said them.

The deep hidden states of all its positions come back instead of the last one's. They are scored chunk by chunk as they
come, on the compute thread, so that of a text of any length only few logits are there at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from device_agent.chain.chain import ChainSession
from device_agent.chain.prefill import prefilled
from split_model.device import on_host, put
from split_model.sampling import logprobs
from split_model.stack import Head
from wire.errors import Code, SessionFailed

MAX_LOGITS: Final = 2**22
"""Logits that are there at once: 16 MiB, and as much again for each of two copies."""

MAX_SCORED: Final = 256
"""Tokens that are scored at once, however small the vocabulary: another tenant's work waits meanwhile."""


@dataclass(frozen=True)
class Score:
    """How likely one token of a text is.

    Attributes:
        logprob: natural logarithm, of the raw distribution.
        rank: tokens that are as likely or likelier, itself included; 0 for the first, which nothing comes before.
        top: the likeliest, ``(id, logprob)``, best first.
    """

    token: int
    logprob: float = 0.0
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()


async def scores(session: ChainSession, ids: Sequence[int], top: int) -> AsyncGenerator[list[Score], None]:
    """Prefill a session that holds nothing yet, and tell the scores of all tokens, some at a time and in order.

    Args:
        ids: the text, one token at least.
        top: alternatives to tell with each.

    Raises:
        SessionFailed: as of ``prefill``, and where the logits are not numbers; the session must be closed.
    """
    assert session.position == 0
    head, done, at_once = session.chain.parts.head, 1, _at_once(session)
    yield [Score(ids[0])]
    async with aclosing(prefilled(session, ids, len(ids))) as chunks:
        async for deep in chunks:
            for rows in torch.split(deep, at_once):
                tokens = ids[done : done + len(rows)]  # The last row says what follows the text.
                if tokens:
                    yield await session.compute.submit(partial(scored, head, rows[: len(tokens)], tokens, top))
                    done += len(tokens)


async def likelihoods(session: ChainSession, deep: torch.Tensor, asked: Sequence[tuple[int, int]]) -> list[float]:
    """The log-probabilities of tokens, each as a row says what follows it.

    Args:
        deep: ``[rows, hidden_size]``, as the last layer gives it.
        asked: rows and tokens, in the order of rows.
    """
    head, found, at_once = session.chain.parts.head, list[float](), _at_once(session)
    for begin in range(0, len(deep), at_once):
        rows = deep[begin : begin + at_once]
        pairs = [(row - begin, token) for row, token in asked if begin <= row < begin + at_once]
        found += await session.compute.submit(partial(_likelihoods, head, rows, pairs))
    return found


@torch.inference_mode()
def _likelihoods(head: Head, deep: torch.Tensor, asked: list[tuple[int, int]]) -> list[float]:
    rows, tokens = put(torch.tensor(asked), head.device).unbind(1)
    return list(*on_host(logprobs(head.forward(put(deep, head.device)))[rows, tokens]))


def _at_once(session: ChainSession) -> int:
    """Rows whose logits are made in one piece."""
    return max(1, min(MAX_SCORED, MAX_LOGITS // session.chain.parts.spec.vocab_size))


@torch.inference_mode()
def scored(head: Head, deep: torch.Tensor, tokens: Sequence[int], top: int) -> list[Score]:
    """The scores of ``tokens``, each said by the row before it.

    Args:
        deep: ``[len(tokens), hidden_size]``, as the last layer gives it.

    Raises ``SessionFailed`` where the logits are not numbers.
    """
    found = logprobs(head.forward(put(deep, head.device)))
    own = found.gather(1, put(torch.tensor(tokens), head.device).unsqueeze(1))
    best = found.topk(min(top, found.shape[1]))
    told = on_host(own.squeeze(1), (found >= own).sum(1), best.indices, best.values)
    if any(each != each for each in told[0]):
        raise SessionFailed(Code.NOT_FINITE, "the text cannot be scored: the model gives no numbers for it")
    return [
        Score(token, logprob, rank, tuple(zip(names, values, strict=True)))
        for token, logprob, rank, names, values in zip(tokens, *told, strict=True)
    ]
