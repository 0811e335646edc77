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
        longest: tokens of an answer; fewer where the model has no more positions.
        said: called with the tokens said since the last call, those that an answer which ended did not need included:
            `longest` for each document in all.
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
        for number, tokens in zip(chosen, _answers(model, prompts, heat, longest, chance, said), strict=True):
            answered[number] = tokens
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
    said: Callable[[int], None],
) -> list[list[int]]:
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    most = max(1, min(longest, model.spec.max_positions - width))
    ids = torch.zeros((len(prompts), width), dtype=torch.int64)
    for lane, prompt in enumerate(prompts):
        ids[lane, : len(prompt)] = torch.from_numpy(prompt)
    lanes = Lanes(model.stack, len(prompts), width + most)
    hidden = model.stack.run(model.embedding.forward(ids.reshape(-1)), Prompts(lengths, width, lanes))
    last = hidden.view(len(prompts), width, -1)[torch.arange(len(prompts)), lengths - 1]
    heat = torch.tensor(temperatures)
    ends = torch.tensor(sorted(model.spec.eos_token_ids), dtype=torch.int64)
    answers: list[list[int]] = [[] for _ in prompts]
    going = torch.arange(len(prompts))  # which prompt each lane answers
    for step in range(1, most + 1):
        tokens = _chosen(model.head.forward(last), heat, chance)
        for prompt, token in zip(going.tolist(), tokens.tolist(), strict=True):
            answers[prompt].append(token)
        open_ = ~torch.isin(tokens, ends) if step < most else torch.zeros_like(tokens, dtype=torch.bool)
        still_open = int(open_.sum())
        said(still_open + (len(tokens) - still_open) * (longest - step + 1))
        if not still_open:
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
