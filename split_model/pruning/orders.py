"""In which order heads are left out, by each of the ways that are compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import torch

from split_model.checkpoint import Checkpoint
from split_model.matrix import read_stacked
from split_model.pruning.calibration import Head
from split_model.pruning.features import features
from split_model.pruning.importance import ROWS, Measure, attention_weights, importance
from split_model.pruning.liscore import composite, normalised, sampled_rows
from split_model.pruning.retrieval import ImportanceStore
from split_model.pruning.watched import Attended, Layers
from split_model.weight_parts import layer_parts

PruneBy = Literal["effect", "liscore", "liscore-literal", "magnitude", "random"]
"""effect: as measured by calibration. liscore: the paper's score of the prompt at hand, its sign mended, or literally.
magnitude: the size of value and output matrices. random: at random."""

MEASURES: dict[str, Measure] = {"liscore": "variance", "liscore-literal": "literal"}


def by_chance(layers: int, heads: int, seed: int = 0) -> tuple[Head, ...]:
    """All heads, shuffled."""
    order = [(layer, head) for layer in range(layers) for head in range(heads)]
    random.Random(seed).shuffle(order)
    return tuple(order)


def by_magnitude(checkpoint: Checkpoint) -> tuple[Head, ...]:
    """Those first whose value and output matrices are smallest: the product of their norms."""
    spec = checkpoint.spec
    found: dict[Head, float] = {}
    for layer in range(spec.num_layers):
        parts = layer_parts(spec, layer)
        values, output = (read_stacked(checkpoint, [each], torch.float32) for each in (parts.value, parts.output))
        per_group = [float(each.norm()) for each in values.split_with_sizes([spec.head_dim] * spec.num_kv_heads)]
        per_head = [float(each.norm()) for each in output.split_with_sizes([spec.head_dim] * spec.num_heads, 1)]
        for head in range(spec.num_heads):
            found[layer, head] = per_head[head] * per_group[head // spec.heads_per_group]
    return tuple(sorted(found, key=found.__getitem__))


def raw_scores(
    layers: Layers, ids: Sequence[int], store: ImportanceStore, measure: Measure, seed: int = 0, most: int = ROWS
) -> list[list[float]]:
    """Eq. 13 of every head over one text, by layer: found again in the store where heads look alike, else computed on
    `most` sampled rows and stored there."""
    hidden, rows = layers.embedding.forward(list(ids)), sampled_rows(len(ids), most, seed)
    found: list[list[float]] = []

    def see(seen: Attended) -> torch.Tensor:
        looks = features(seen)
        scores = store.find(looks)
        missing = [head for head, score in enumerate(scores) if score is None]
        if missing:
            fresh = importance(attention_weights(seen.q[rows], seen.k, rows), rows, measure)
            store.add(looks, [fresh[head] if score is None else None for head, score in enumerate(scores)])
            scores = [fresh[head] if score is None else score for head, score in enumerate(scores)]
        found.append([score for score in scores if score is not None])
        return seen.context

    for layer in range(layers.count):
        hidden = layers.run(layer, hidden, [len(ids)], see)
    return found


def by_scores(scores: Sequence[Sequence[float]], seconds: Sequence[float] | None = None) -> tuple[Head, ...]:
    """LiScore's order: in each layer the least first (Eq. 14 and 15), and as many of each layer, since scores of
    different layers cannot be compared once each layer has its own scale.

    seconds: what the attention of each head of a layer takes; None: all as long, as on one device.
    """
    ranked = []
    for layer, each in enumerate(scores):
        whole = composite(normalised(each), seconds or [1.0] * len(each))
        order = sorted(range(len(each)), key=whole.__getitem__)
        ranked += [(rank, whole[head], layer, head) for rank, head in enumerate(order)]
    return tuple((layer, head) for _, _, layer, head in sorted(ranked))
