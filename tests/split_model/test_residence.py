"""Layers that come and go while the stack lives: the same tokens, and memory that is given back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from checkpoints import DEMO
from oracle import oracle_tokens, prompt_for
from tiny_models import build_tiny

from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.errors import BadCheckpoint
from split_model.reference import Reference
from split_model.residence import Blocks
from split_model.slices import slice_bytes, whole
from split_model.stack import Embedding, Head, Span, Stack


def resident_bytes() -> int:
    """What this process has of the machine's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watched(Blocks):
    """Layers that note how much was in memory while each was being computed."""

    def __init__(self, checkpoint: Checkpoint, count: int) -> None:
        super().__init__([None] * count, lambda layer: Block(checkpoint, layer, torch.float32))
        self.most = 0

    def load(self, layer: int) -> Block:
        block = super().load(layer)
        self.most = max(self.most, self.loaded_bytes)
        return block


def test_layers_that_come_one_by_one_give_transformers_tokens() -> None:
    """The demo model from a stack that never holds two layers, and holds none between two steps."""
    checkpoint = Checkpoint.open(DEMO)
    spec = checkpoint.spec
    blocks = Watched(checkpoint, spec.num_layers)
    embedding = Embedding.load(checkpoint, torch.float32)
    head = Head.load(checkpoint, spec, torch.float32, embedding)
    model = Reference(embedding, Stack(spec, whole(spec), blocks, torch.float32), head)
    prompt = prompt_for(DEMO, 30)
    found = model.generate(prompt, 12)
    assert found == oracle_tokens(DEMO, prompt, 12)[: len(found)]
    assert len(found) == 12 or found[-1] in spec.eos_token_ids
    one = blocks.load(0).loaded_bytes
    assert blocks.most == one == model.stack.loaded_bytes
    blocks.drop(0)
    assert model.stack.loaded_bytes == 0


def test_some_layers_stay_and_others_come_and_go(tmp_path: Path) -> None:
    """Those that were loaded stay through a run, the others do not; the rows are the whole stack's bit for bit."""
    checkpoint = Checkpoint.open(build_tiny("qwen3-biases", tmp_path))
    held = whole(checkpoint.spec)
    resident = Stack.load(checkpoint, held, torch.float32)
    passing = Stack.load(checkpoint, held, torch.float32, resident=False)
    assert passing.loaded_bytes == 0
    for layer in (1, 3):
        assert passing.blocks.load(layer) is passing.blocks[layer]
    before = passing.loaded_bytes
    assert before * 2 == resident.loaded_bytes
    caches = [stack.new_cache(20) for stack in (resident, passing)]
    for rows in (7, 1, 5):
        hidden = torch.randn(rows, 32, generator=torch.Generator().manual_seed(rows))
        wanted, found = (
            stack.forward(hidden, [Span(cache, rows)]) for stack, cache in zip((resident, passing), caches, strict=True)
        )
        assert torch.equal(found, wanted) and passing.loaded_bytes == before


def test_memory_is_given_back(tmp_path: Path) -> None:
    """What the system counts goes up by the weights and down again, also where blocks are still known to somebody."""
    checkpoint = Checkpoint.open(build_tiny("llama", tmp_path, hidden_size=512, intermediate_size=2048))
    held = whole(checkpoint.spec)
    weights = slice_bytes(checkpoint.spec, held, torch.float32)
    stack = Stack.load(checkpoint, held, torch.float32, resident=False)
    stack.forward(torch.zeros(1, 512), [Span(stack.new_cache(1), 1)])  # Whatever is taken once is taken.
    before = resident_bytes()
    known = stack.blocks[:]
    loaded = resident_bytes()
    for layer in range(len(known)):
        stack.blocks.drop(layer)
    assert loaded - before > 0.9 * weights > 50e6
    assert resident_bytes() - before < 0.1 * weights
    with pytest.raises(AttributeError):
        known[0].mlp_norm(torch.zeros(1, 512))


def test_a_layer_that_cannot_be_read_ends_the_run_and_not_the_stack(tmp_path: Path) -> None:
    """The cache stays as it was, and the next run goes through once the file is there again."""
    checkpoint = Checkpoint.open(build_tiny("llama", tmp_path))
    stack = Stack.load(checkpoint, whole(checkpoint.spec), torch.float32, resident=False)
    cache, rows = stack.new_cache(9), torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    wanted = stack.forward(rows, [Span(cache, 2)])
    cache.truncate(0)
    file = tmp_path / "model.safetensors"
    file.rename(tmp_path / "away")
    with pytest.raises(BadCheckpoint):
        stack.forward(rows, [Span(cache, 2)])
    (tmp_path / "away").rename(file)
    assert cache.length == 0 and torch.equal(stack.forward(rows, [Span(cache, 2)]), wanted)
