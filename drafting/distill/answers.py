"""Answers said anew by the model itself: a drafter is to guess what the model says, not what the text says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from drafting.distill.lanes import Lanes, NextRows, Prompts
from drafting.distill.text import Document
from split_model.reference import Reference

MOST_LANES = 384
CACHE_BYTES = 2 << 30
"""Keys and values of all lanes together take no more than this."""


def regenerated(
    model: Reference,
    documents: Sequence[Document],
    temperatures: Sequence[float],
    longest: int,
    seed: int,
    said: Callable[[int], None],
) -> list[Document]:
    """Each document with its last answer said anew.

    Args:
        temperatures: document `n` is answered at the `n`-th of them, counted round; 0: greedy.
        longest: tokens of an answer.
        said: called with the number of documents answered since the last call.
    """
    order = sorted(range(len(documents)), key=lambda number: documents[number].prompt)
    positions = max((document.prompt for document in documents), default=0) + longest
    stack = model.stack
    row_bytes = 2 * len(stack.blocks) * stack.kv_heads * stack.spec.head_dim * stack.dtype.itemsize
    lanes = max(1, min(MOST_LANES, CACHE_BYTES // (row_bytes * positions)))
    answered: dict[int, list[int]] = {}
    for first in range(0, len(order), lanes):
        chosen = order[first : first + lanes]
        prompts = [documents[number].ids[: documents[number].prompt] for number in chosen]
        heat = [temperatures[number % len(temperatures)] for number in chosen]
        chance = torch.Generator().manual_seed(seed * 1_000_003 + first)
        for number, tokens in zip(chosen, _answers(model, prompts, heat, longest, chance), strict=True):
            answered[number] = tokens
        said(len(chosen))
    return [_joined(document, answered[number]) for number, document in enumerate(documents)]


def _joined(document: Document, answer: Sequence[int]) -> Document:
    ids = np.concatenate((document.ids[: document.prompt], np.array(answer, dtype=np.int32)))
    own = np.concatenate((document.own[: document.prompt], np.ones(len(answer), dtype=bool)))
    return Document(ids, own)


@torch.inference_mode()
def _answers(
    model: Reference,
    prompts: Sequence[np.ndarray],
    temperatures: Sequence[float],
    longest: int,
    chance: torch.Generator,
) -> list[list[int]]:
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    ids = torch.zeros((len(prompts), width), dtype=torch.int64)
    for lane, prompt in enumerate(prompts):
        ids[lane, : len(prompt)] = torch.from_numpy(prompt)
    lanes = Lanes(model.stack, len(prompts), width + longest)
    hidden = model.stack.run(model.embedding.forward(ids.reshape(-1)), Prompts(lengths, width, lanes))
    last = hidden.view(len(prompts), width, -1)[torch.arange(len(prompts)), lengths - 1]
    heat = torch.tensor(temperatures)
    ends = torch.tensor(sorted(model.spec.eos_token_ids), dtype=torch.int64)
    answers: list[list[int]] = [[] for _ in prompts]
    going = torch.arange(len(prompts))  # which prompt each lane answers
    for _ in range(longest):
        tokens = _chosen(model.head.forward(last), heat, chance)
        for prompt, token in zip(going.tolist(), tokens.tolist(), strict=True):
            answers[prompt].append(token)
        open_ = ~torch.isin(tokens, ends)
        if not open_.any():
            break
        if not open_.all():
            still = open_.nonzero()[:, 0]
            going, heat, tokens = going[still], heat[still], tokens[still]
            lanes.keep(still)
        last = model.stack.run(model.embedding.forward(tokens), NextRows(lanes))
    return answers


def _chosen(logits: torch.Tensor, temperatures: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    best = logits.argmax(-1)
    warm = temperatures > 0
    if warm.any():
        # Gumbel's trick: the largest of logits / T + noise is a draw from softmax(logits / T).
        noise = -torch.empty_like(logits).exponential_(generator=chance).log()
        drawn = (logits / temperatures.clamp(min=1e-6)[:, None] + noise).argmax(-1)
        best = torch.where(warm, drawn, best)
    return best
