"""What is found out about heads before anybody asks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import built

from split_model.checkpoint import Checkpoint
from split_model.pruning.calibration import LEAST_TOKENS, calibrate, most_stages, written
from split_model.pruning.kept import KeptHeads
from split_model.pruning.stack import PrunedStacks
from split_model.pruning.watched import Layers
from split_model.reference import Reference
from split_model.slices import Slice
from split_model.stack import Span, Stack


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@torch.inference_mode()
def test_the_first_head_to_go_is_the_one_whose_loss_changes_least(name: str, tiny_folder: Path) -> None:
    """By the product's own pruned layers, with means in place of what is pruned; and layers in two stacks, as a device
    that drafts has them, give the same order."""
    path = built(name, tiny_folder)
    reference, checkpoint = Reference.load(path), Checkpoint.open(path)
    spec = reference.spec
    layers = Layers(reference.embedding, (reference.stack,), reference.head)
    ids = written(layers, 1, texts=2, tokens=12)
    assert ids.shape == (2, 12) and torch.equal(ids, written(layers, 1, texts=2, tokens=12))
    assert written(layers, 1, texts=2, tokens=60, enough=lambda: True).shape == (2, LEAST_TOKENS)
    found = calibrate(layers, ids, stages=2)
    units = [(layer, head) for layer in range(spec.num_layers) for head in range(spec.num_heads)]
    assert sorted(found.order) == units

    def logits(stack: Stack) -> torch.Tensor:
        spans = [Span(stack.new_cache(12), 12) for _ in range(2)]
        return reference.head.forward(stack.forward(reference.embedding.forward(ids.flatten()), spans))

    whole = logits(reference.stack).log_softmax(-1)
    stacks = PrunedStacks(reference.stack, checkpoint, 1 << 30, found.means)
    effects = {}
    for unit in units:
        heads = [tuple(head for head in range(spec.num_heads) if (layer, head) != unit) for layer in range(4)]
        pruned = stacks.with_heads([KeptHeads(each, spec.num_heads, spec.heads_per_group) for each in heads])
        effects[unit] = float((whole.exp() * (whole - logits(pruned).log_softmax(-1))).sum(-1).mean())
    first = sorted(units, key=effects.__getitem__)[: len(units) // 2]
    assert set(found.order[: len(units) // 2]) == set(first)
    cut = [Stack.load(checkpoint, Slice(*each), torch.float32) for each in ((0, 1), (1, 4))]
    again = calibrate(Layers(reference.embedding, tuple(cut), reference.head), ids, stages=2)
    assert again.order == found.order
    torch.testing.assert_close(again.means, found.means)


def test_effects_are_measured_as_often_as_there_is_time_for() -> None:
    """48 heads and passes of a second: 108 s in eight stages, 60 in four, 36 in two, 24 in one."""
    assert [most_stages(48, 1.0, within_s) for within_s in (108, 107, 60, 36, 24, 23)] == [8, 4, 4, 2, 1, 0]


def test_whoever_waits_may_end_it(tiny: Path) -> None:
    """What `heard` raises ends the pass, at the first head."""
    reference = Reference.load(tiny)
    layers = Layers(reference.embedding, (reference.stack,), reference.head)

    def stop() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        calibrate(layers, torch.ones((1, 4), dtype=torch.int64), heard=stop)
