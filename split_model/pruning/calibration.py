"""What heads do in texts that the model itself writes: their mean, and what leaving one out changes.

No text of anybody is needed: the model writes a few short ones, from its first token on, drawn with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import kl_div

from split_model.pruning.watched import Attended, Layers, text_starts
from split_model.stack import Span

TEXTS, TOKENS = 4, 192
"""So many texts of so many tokens. Of 200 tokens each they give orders that lose up to a third less than of 64."""
LEAST_TOKENS = 32
SCORED_ROWS = 64
"""Whose distributions are computed at a time: of all rows they would be in memory several times, gigabytes of a large
vocabulary."""
STAGES = 8
SEED = 20


def _nothing() -> None:
    pass


Head = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True)
class Calibration:
    """What was found.

    Attributes:
        means: float32 [layers, heads, head_dim] on the host, the mean context of each head. A text's first row counts
            in no mean: it sees itself alone.
        order: all heads, those first whose loss changes least: the first n are what to prune where n are pruned.
    """

    means: torch.Tensor
    order: tuple[Head, ...]


@torch.inference_mode()
def written(
    layers: Layers,
    first: int,
    texts: int = TEXTS,
    tokens: int = TOKENS,
    seed: int = SEED,
    enough: Callable[[], bool] = lambda: False,
) -> torch.Tensor:
    """Texts that the model writes behind the token `first`: ids, int64 [texts, tokens], or fewer tokens.

    enough: whether to stop where they are, asked from `LEAST_TOKENS` on.
    """
    draw = torch.Generator().manual_seed(seed)
    caches = [[stack.new_cache(tokens) for stack in layers.stacks] for _ in range(texts)]
    ids = torch.full((texts, tokens), first, dtype=torch.int64)
    for position in range(tokens - 1):
        if position + 1 >= LEAST_TOKENS and enough():
            return ids[:, : position + 1]
        hidden = layers.embedding.forward(ids[:, position])
        for number, stack in enumerate(layers.stacks):
            hidden = stack.forward(hidden, [Span(held[number], 1) for held in caches])
        chances = layers.head.forward(hidden).softmax(-1).cpu()
        ids[:, position + 1] = torch.multinomial(chances, 1, generator=draw)[:, 0]
    return ids


@torch.inference_mode()
def calibrate(
    layers: Layers, ids: torch.Tensor, stages: int = STAGES, heard: Callable[[], None] = _nothing
) -> Calibration:
    """Means, and the order by measured effect, over texts, ids int64 [texts, tokens].

    The effect of a head is how far the distribution of the next token is from the whole model's, in nats, where it
    gives its mean. Heads stand in for one another, so effects are measured anew behind each of the `stages`, in which
    as many heads leave that change least; without stages the order is empty.

    heard: called between runs, of which each head is one in each stage; what it raises ends this.
    """
    lengths = [ids.shape[1]] * ids.shape[0]
    hidden, means = layers.embedding.forward(ids.flatten()), list[torch.Tensor]()
    later = torch.ones(ids.numel(), dtype=torch.bool, device=hidden.device)
    later[list(text_starts(lengths))] = False

    def note(seen: Attended) -> torch.Tensor:
        means.append(seen.context[later].float().mean(0))
        return seen.context

    rows = hidden.clone()
    for layer in range(layers.count):
        rows = layers.run(layer, rows, lengths, note)
    whole = [layers.head.forward(each).log_softmax(-1) for each in torch.split(rows, SCORED_ROWS)]
    masked = _Masked(layers, lengths, means, whole)
    left = [(layer, head) for layer in range(layers.count) for head in range(len(means[0]))]
    total, order = len(left), list[Head]()
    for stage in range(1, stages + 1):
        effects = masked.effects(hidden, order, left, heard)
        left.sort(key=effects.__getitem__)
        leaving = total * stage // stages - len(order)
        order, left = order + left[:leaving], left[leaving:]
    return Calibration(torch.stack(means).cpu(), tuple(order))


def most_stages(heads: int, pass_s: float, within_s: float, most: int = STAGES) -> int:
    """In how many stages effects are measured within so many seconds, halved until they are; 0 where one takes longer.

    heads: of all layers. pass_s: one pass of the texts through all layers; a head's takes half of that on average.
    """
    stages = most
    while stages and heads * pass_s / 2 * (stages + 1) / 2 > within_s:
        stages //= 2
    return stages


class _Masked:
    """A model some of whose heads give their means, beside the whole one over the same texts."""

    def __init__(
        self, layers: Layers, lengths: list[int], means: list[torch.Tensor], whole: list[torch.Tensor]
    ) -> None:
        """whole: the whole model's distributions, of `SCORED_ROWS` rows each."""
        self._layers, self._lengths, self._means, self._whole = layers, lengths, means, whole

    def effects(
        self, hidden: torch.Tensor, gone: Sequence[Head], left: Sequence[Head], heard: Callable[[], None]
    ) -> dict[Head, float]:
        """Of each head that is left, were it to go besides; hidden: the texts' rows before the first layer."""
        found: dict[Head, float] = {}
        for layer in range(self._layers.count):
            for each in left:
                if each[0] == layer:
                    heard()
                    found[each] = self._divergence(self._from(layer, hidden, [*gone, each]))
            hidden = self._run(layer, hidden, gone)
        return found

    def _from(self, layer: int, hidden: torch.Tensor, gone: Sequence[Head]) -> torch.Tensor:
        for each in range(layer, self._layers.count):
            hidden = self._run(each, hidden, gone)
        return hidden

    def _run(self, layer: int, hidden: torch.Tensor, gone: Sequence[Head]) -> torch.Tensor:
        heads = [head for at, head in gone if at == layer]

        def replaced(seen: Attended) -> torch.Tensor:
            context = seen.context.clone()
            context[:, heads] = self._means[layer][heads].to(context.dtype)
            return context

        return self._layers.run(layer, hidden.clone(), self._lengths, replaced)

    def _divergence(self, hidden: torch.Tensor) -> float:
        """The mean Kullback-Leibler divergence from the whole model's distributions."""
        far = 0.0
        for rows, whole in zip(torch.split(hidden, SCORED_ROWS), self._whole, strict=True):
            found = self._layers.head.forward(rows).log_softmax(-1)
            far += float(kl_div(found, whole, log_target=True, reduction="sum"))
        return far / len(hidden)
