"""What heads do in texts that the model itself writes: their mean, and what leaving one out changes.

No text of anybody is needed: the model writes a few short ones, from its first token on, drawn with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from split_model.pruning.watched import Attended, Layers, text_starts
from split_model.stack import Span

TEXTS, TOKENS = 8, 96
"""So many texts of so many tokens. More change the order of heads little, and each costs its time at the start."""
SEED = 20


@dataclass(frozen=True)
class Calibration:
    """What was found, float32 on the host.

    Attributes:
        means: [layers, heads, head_dim], the mean context of each head. A text's first row counts in no mean: it sees
            itself alone.
        effects: [layers, heads], nats a token: how far the distribution of the next token is from the whole model's,
            where a head gives its mean.
    """

    means: torch.Tensor
    effects: torch.Tensor


@torch.inference_mode()
def written(layers: Layers, first: int, texts: int = TEXTS, tokens: int = TOKENS, seed: int = SEED) -> torch.Tensor:
    """Texts that the model writes behind the token `first`: ids, int64 [texts, tokens]."""
    draw = torch.Generator().manual_seed(seed)
    caches = [[stack.new_cache(tokens) for stack in layers.stacks] for _ in range(texts)]
    ids = torch.full((texts, tokens), first, dtype=torch.int64)
    for position in range(tokens - 1):
        hidden = layers.embedding.forward(ids[:, position])
        for number, stack in enumerate(layers.stacks):
            hidden = stack.forward(hidden, [Span(held[number], 1) for held in caches])
        chances = layers.head.forward(hidden).softmax(-1).cpu()
        ids[:, position + 1] = torch.multinomial(chances, 1, generator=draw)[:, 0]
    return ids


@torch.inference_mode()
def calibrate(layers: Layers, ids: torch.Tensor, heard: Callable[[], None] = lambda: None) -> Calibration:
    """Means and effects over texts, ids int64 [texts, tokens].

    heard: called between runs, of which each head is one; what it raises ends this.
    """
    lengths = [ids.shape[1]] * ids.shape[0]
    later = torch.ones(ids.numel(), dtype=torch.bool)
    later[list(text_starts(lengths))] = False
    hidden, before, means = layers.embedding.forward(ids.flatten()), [], []

    def note(seen: Attended) -> torch.Tensor:
        means.append(seen.context[later.to(seen.context.device)].float().mean(0))
        return seen.context

    for layer in range(layers.count):
        before.append(hidden)
        hidden = layers.run(layer, hidden.clone(), lengths, note)
    whole = layers.head.forward(hidden).log_softmax(-1)
    effects = torch.zeros(layers.count, means[0].shape[0])
    for layer, mean in enumerate(means):
        for head in range(len(mean)):
            heard()
            rows = layers.run(layer, before[layer].clone(), lengths, _replacing(head, mean[head]))
            logits = layers.head.forward(layers.rest(layer + 1, rows, lengths))
            effects[layer, head] = _divergence(whole, logits)
    return Calibration(torch.stack(means).cpu(), effects)


def _replacing(head: int, mean: torch.Tensor) -> Callable[[Attended], torch.Tensor]:
    def replaced(seen: Attended) -> torch.Tensor:
        context = seen.context.clone()
        context[:, head] = mean.to(context.dtype)
        return context

    return replaced


def _divergence(whole: torch.Tensor, logits: torch.Tensor) -> float:
    """The mean Kullback-Leibler divergence of distributions from those of the whole model."""
    found = torch.nn.functional.kl_div(logits.log_softmax(-1), whole, log_target=True, reduction="batchmean")
    return float(found)
