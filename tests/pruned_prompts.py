"""Prompts that are read without some heads: what is asked, what is answered, and what should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from checkpoints import DEMO
from oracle import prompt_for

from device_agent.answering.answer import ServedChain, answer
from device_agent.planning.pruning import PassCosts
from split_model.checkpoint import Checkpoint
from split_model.hub import identity
from split_model.pruning.calibration import Calibration
from split_model.pruning.kept import HeadSets
from split_model.pruning.kept_calibration import kept_calibration
from split_model.pruning.orders import by_chance
from split_model.pruning.stack import PrunedStacks
from split_model.reference import Reference, written
from split_model.stack import Span
from wire.messages import AnyMessage
from wire.request_messages import Delta, Done, Finished, Generate, Sampling

LONG, SHORT = prompt_for(DEMO, 100), prompt_for(DEMO, 30)
TOKENS = 8
LIMIT_S = 0.8
"""For which a prompt of 100 tokens has to lose some heads, and one of 30 none, where a row takes 10 ms."""

ROWS_10_MS = PassCosts((1, 101), (0.01, 1.01), (0.006, 0.606))


def some_calibration() -> Calibration:
    """Of the demo model, kept from now on."""
    checkpoint = Checkpoint.open(DEMO)
    spec = checkpoint.spec
    means = torch.randn(spec.num_layers, spec.num_heads, spec.head_dim, generator=torch.Generator().manual_seed(1))
    made = Calibration(means * 0.1, by_chance(spec.num_layers, spec.num_heads, seed=4))
    return kept_calibration(identity(checkpoint), "torch.float32", lambda: made)


def request(ids: tuple[int, ...] = LONG, **changed: Any) -> Generate:
    """A greedy answer to these."""
    sampling = Sampling(temperature=0.0)
    asked = Generate(1, "id", "demo", "", list(ids), 1, TOKENS, ignore_eos=True, logprobs=0, sampling=sampling)
    return msgspec.structs.replace(asked, **changed)


async def finished(
    model: ServedChain, asked: Generate, heard: Callable[[AnyMessage], object] = lambda message: None
) -> tuple[list[bytes], int, list[int | None]]:
    """The bytes of each choice, tokens of the prompt that were cached, and the heads that each says were left out."""
    said: list[AnyMessage] = []

    def post(message: AnyMessage) -> None:
        said.append(message)
        heard(message)

    await answer(model, asked, post)
    tokens = [b""] * asked.n
    for each in said:
        if isinstance(each, Delta):
            tokens[each.index] += b"".join(token.chosen.raw for token in each.logprobs or [])
    [done] = [each for each in said if isinstance(each, Done)]
    return tokens, done.cached_tokens, [each.heads_pruned for each in said if isinstance(each, Finished)]


def without_heads(
    model: ServedChain, sets: HeadSets, means: torch.Tensor, ids: tuple[int, ...], count: int = TOKENS
) -> bytes:
    """What the model says in one process, where it has these heads and means stand for the others."""
    reference = Reference.load(DEMO)
    stack = PrunedStacks(reference.stack, Checkpoint.open(DEMO), 1 << 30, means).with_heads(sets)
    cache = stack.new_cache(len(ids) + count)

    def run(rows: Any) -> torch.Tensor:
        hidden = stack.forward(reference.embedding.forward(rows), [Span(cache, len(rows))])
        return reference.head.forward(hidden[-1:])[0]

    tokens = written(run, ids, count, None, ())
    return b"".join(model.tokenizer.piece(token)[1] for token in tokens)
