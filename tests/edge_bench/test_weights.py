"""Tests of the checkpoint that is nowhere: any part of it is what the whole has there."""

from __future__ import annotations

import pytest
import torch
from bench.edge.shapes import SHAPES
from bench.edge.weights import RandomCheckpoint

from split_model.blocks import Block
from split_model.matrix import read_stacked
from split_model.weight_parts import layer_parts


@pytest.mark.parametrize("name", ["tiny", "grouped"])
def test_parts_of_tensors_are_those_of_the_whole(name: str) -> None:
    """Whichever way they are stored: members must have parts of one model."""
    spec = SHAPES[name].spec(1)
    checkpoint, columns = RandomCheckpoint(spec), range(8, 24)
    whole, part = layer_parts(spec, 0), layer_parts(spec, 0, range(1, 2), columns)
    for of, cut in ((whole.up, part.up), (whole.down, part.down)):
        all_of_it = read_stacked(checkpoint, [of], torch.float32)
        there = read_stacked(checkpoint, [cut], torch.float32)
        expected = all_of_it[8:24] if there.shape[0] == 16 else all_of_it[:, 8:24]
        assert torch.equal(there, expected)


def test_two_halves_of_a_layer_make_the_whole_one() -> None:
    """Their partial sums are the layer's, and finite."""
    spec = SHAPES["tiny"].spec(1)
    checkpoint, rows = RandomCheckpoint(spec), torch.randn(5, spec.hidden_size)
    whole = Block(checkpoint, 0, torch.float32)
    half = spec.intermediate_size // 2
    parts = [
        Block(checkpoint, 0, torch.float32, range(2 * at, 2 * at + 2), range(half * at, half * at + half))
        for at in (0, 1)
    ]
    with torch.inference_mode():
        expected, summed = whole.mlp(rows), sum(part.mlp(rows) for part in parts)
    assert torch.isfinite(expected).all()
    assert torch.allclose(expected, torch.as_tensor(summed), atol=1e-5)
