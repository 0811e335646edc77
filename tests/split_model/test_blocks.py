"""One layer's parts, and shards of them that add up."""

from __future__ import annotations

import pytest
import torch
from tiny_models import build_tiny

from split_model.attention import attend
from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.rope import Rope
from split_model.slices import Slice
from split_model.spec import ModelSpec
from split_model.stack import Span, Stack

ROWS = 11
CUTS = {
    "two even": ([range(0, 1), range(1, 2)], [range(0, 22), range(22, 44)]),
    "uneven columns": ([range(0, 2), range(2, 2)], [range(0, 1), range(1, 44)]),
    "heads without columns": ([range(0, 0), range(0, 2)], [range(0, 44), range(44, 44)]),
    "three": ([range(0, 1), range(1, 1), range(1, 2)], [range(0, 10), range(10, 37), range(37, 44)]),
}


NAMES = ["llama", "llama-biases", "qwen2", "qwen3-biases", "mistral-window", "gpt2", "opt-post-norm"]


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.open(build_tiny(request.param, tmp_path_factory.mktemp("model")))


def rotations(spec: ModelSpec, rows: int) -> list[torch.Tensor] | list[None]:
    """Cosines and sines of the first positions, or neither where positions are no rotations."""
    return list(Rope(spec.rope, torch.float32).span(0, rows)) if spec.positions == "rotary" else [None, None]


def some(rotations: list[torch.Tensor] | list[None], part: slice) -> list[torch.Tensor | None]:
    return [None if each is None else each[part] for each in rotations]


def run(blocks: list[Block], hidden: torch.Tensor, spec: ModelSpec, window: int | None) -> torch.Tensor:
    """A layer over the sum of its shards' parts: [rows, hidden]."""
    cos, sin = rotations(spec, len(hidden))
    attention = torch.zeros_like(hidden)
    for block in blocks:
        q, k, v = block.qkv(block.input_norm(hidden), cos, sin)
        assert q.shape == (len(hidden), block.heads, block.head_dim)
        assert k.shape == v.shape == (len(hidden), block.kv_heads, block.head_dim)
        attention += block.attention_output(attend(q, k.transpose(0, 1), v.transpose(0, 1), 0, window))
    hidden = blocks[0].after_attention(hidden, attention)
    wide = torch.stack([block.mlp(block.mlp_norm(hidden)) for block in blocks]).sum(0)
    return blocks[-1].after_mlp(hidden, wide)


@pytest.mark.parametrize("cut", sorted(CUTS))
@torch.inference_mode()
def test_shards_add_up_to_the_layer(checkpoint: Checkpoint, cut: str) -> None:
    """For any cut of KV groups and columns, empty shards included, the partial sums equal the whole layer."""
    spec = checkpoint.spec
    hidden = torch.randn(ROWS, spec.hidden_size, generator=torch.Generator().manual_seed(0))
    groups, columns = CUTS[cut]
    twice = spec.num_kv_heads // 2  # The cuts are of two KV heads.
    groups = [range(twice * held.start, twice * held.stop) for held in groups]
    stack = Stack.load(checkpoint, Slice(2, 3), torch.float32)
    whole = stack.forward(hidden, [Span(stack.new_cache(ROWS), ROWS)])
    shards = [Block(checkpoint, 2, torch.float32, held, part) for held, part in zip(groups, columns, strict=True)]
    torch.testing.assert_close(run(shards, hidden, spec, spec.windows[2]), whole, rtol=0, atol=2e-5)


@torch.inference_mode()
def test_one_row_and_many_rows_agree(checkpoint: Checkpoint) -> None:
    """The parts do not depend on how many rows run together."""
    spec = checkpoint.spec
    block = Block(checkpoint, 0, torch.float32)
    hidden = torch.randn(ROWS, spec.hidden_size, generator=torch.Generator().manual_seed(1))
    angles = rotations(spec, ROWS)
    together = block.qkv(block.input_norm(hidden), *angles)
    mlp = block.mlp(block.mlp_norm(hidden))
    for row in range(ROWS):
        part = slice(row, row + 1)
        # The norm as well: a group may part the rows before it.
        found = block.qkv(block.input_norm(hidden[part]), *some(angles, part))
        for alone, whole in zip(found, together, strict=True):
            torch.testing.assert_close(alone, whole[part], rtol=0, atol=1e-5)
        torch.testing.assert_close(block.mlp(block.mlp_norm(hidden[part])), mlp[part], rtol=0, atol=1e-5)


@torch.inference_mode()
def test_queries_come_without_keys_and_these_without_queries(checkpoint: Checkpoint) -> None:
    """Loaded apart, the queries of some rows and the keys and values of others are those of all rows together."""
    spec = checkpoint.spec
    together, apart = Block(checkpoint, 1, torch.float32), Block(checkpoint, 1, torch.float32, apart=True)
    assert apart.loaded_bytes == together.loaded_bytes
    normed = together.input_norm(torch.randn(ROWS, spec.hidden_size, generator=torch.Generator().manual_seed(2)))
    angles = rotations(spec, ROWS)
    queries, keys, values = together.qkv(normed, *angles)
    these, others = slice(2, 5), slice(0, 9)
    found = [apart.qkv.query(normed[these], *some(angles, these))]
    found += apart.qkv.key_value(normed[others], *some(angles, others))
    wanted = [queries[these], keys[others], values[others]]
    found += apart.qkv(normed, *angles)
    for alone, whole in zip(found, [*wanted, queries, keys, values], strict=True):
        torch.testing.assert_close(alone, whole, rtol=0, atol=1e-5)
