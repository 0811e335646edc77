"""A drafter that stands for one layer begins with that layer's attention, any other at random."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import build_tiny

from drafting.distill.beginning import begin_as_layer
from drafting.distill.network import Adapter, FrozenHead, Fused, new_network
from drafting.distill.trainable import Rows
from split_model.checkpoint import Checkpoint
from split_model.slices import Slice
from split_model.stack import Span, Stack

UNIT = 7.0


def opened(name: str, folder: Path) -> Checkpoint:
    path = folder / name
    if not path.exists():
        build_tiny(name, path)
    return Checkpoint.open(path)


@pytest.mark.parametrize("kind", ["adapter", "fused"])
def test_begins_as_the_layer_it_stands_for(kind: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On rows in its unit it does what the model's layer does, but for the layer's MLP."""
    checkpoint = opened("llama", tiny_folder)
    spec, split = checkpoint.spec, checkpoint.spec.num_layers - 1
    network = new_network(kind, spec, FrozenHead.load(checkpoint), 0)
    assert isinstance(network, Adapter | Fused) and begin_as_layer(network, checkpoint, split, UNIT)
    layer = Stack.load(checkpoint, Slice(split, split + 1), torch.float32)
    monkeypatch.setattr(layer.blocks[0], "mlp", torch.zeros_like)
    rows = torch.randn((9, spec.hidden_size), generator=torch.Generator().manual_seed(3))
    expected = layer.forward(rows, [Span(layer.new_cache(9), 9)])
    texts = Rows(rows[None] / UNIT, torch.zeros(1, 9, spec.hidden_size), torch.zeros(1, 9, dtype=torch.bool))
    torch.testing.assert_close(network.drafted(texts, 1)[0][0] * UNIT, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "behind"), [("llama", 2), ("qwen3", 1), ("qwen2-windows", 1)])
def test_otherwise_at_random(name: str, behind: int, tiny_folder: Path) -> None:
    """Several layers, or one whose projections have more than a drafter's: nothing is touched."""
    checkpoint = opened(name, tiny_folder)
    network = new_network("adapter", checkpoint.spec, FrozenHead.load(checkpoint), 0)
    before = {name: each.detach().clone() for name, each in network.named_parameters()}
    assert not begin_as_layer(network, checkpoint, checkpoint.spec.num_layers - behind, UNIT)
    assert all(torch.equal(before[name], each) for name, each in network.named_parameters())
