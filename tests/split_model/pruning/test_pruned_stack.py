"""Layers without some heads: equal to the whole model whose heads give nothing, which transformers computes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from masked_heads import replaced
from tiny_models import built
from transformers import AutoModelForCausalLM

from split_model.checkpoint import Checkpoint
from split_model.matrix import can_pack
from split_model.pruning.block import CannotPrune, PrunedBlock
from split_model.pruning.kept import KeptHeads
from split_model.pruning.stack import NoRoomForSets, PrunedStacks
from split_model.reference import Reference
from split_model.stack import Span

NAMES = ["llama", "llama-one-kv-head", "llama-biases", "qwen3-biases", "mistral-window", "gpt2", "opt-post-norm"]
IDS = [1, 5, 9, 60, 33, 2, 71, 14, 88, 3, 40, 41]


def some_sets(reference: Reference, seed: int) -> list[KeptHeads]:
    """Any heads of each layer: all of the first, none of the second, whole KV heads of the third."""
    spec, rng = reference.spec, random.Random(seed)
    total, group = spec.num_heads, spec.heads_per_group
    sets = [KeptHeads(tuple(range(total)), total, group), KeptHeads((), total, group)]
    sets.append(KeptHeads.of_groups(rng.sample(range(spec.num_kv_heads), (spec.num_kv_heads + 1) // 2), total, group))
    for _ in range(spec.num_layers - len(sets)):
        sets.append(KeptHeads(tuple(sorted(rng.sample(range(total), rng.randint(1, total - 1)))), total, group))
    return sets


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("folded", [False, True], ids=["nothing", "means"])
@torch.inference_mode()
def test_logits_are_those_of_the_whole_model_with_heads_masked(name: str, folded: bool, tiny_folder: Path) -> None:
    """The prompt in two pieces, rows one by one behind it, and a fork: within 1e-4 of transformers in fp32. Pruned
    heads give nothing, or their mean."""
    path = built(name, tiny_folder)
    reference = Reference.load(path)
    spec, sets = reference.spec, some_sets(reference, len(name))
    means = torch.randn(spec.num_layers, spec.num_heads, spec.head_dim, generator=torch.Generator().manual_seed(3))
    stacks = PrunedStacks(reference.stack, Checkpoint.open(path), 1 << 30, means if folded else None)
    stack = stacks.with_heads(sets)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with replaced(model, sets, means if folded else torch.zeros_like(means)):
        wanted = model(torch.tensor([IDS])).logits[0]
    cache = stack.new_cache(len(IDS))
    got = []
    for begin, end in ((0, 5), (5, 8), (8, 9), (9, 10)):
        rows = reference.embedding.forward(IDS[begin:end])
        got.append(stack.forward(rows, [Span(cache, end - begin)]))
    forked = stack.new_cache(0)
    forked.begin_as(cache, 10)
    got.append(stack.forward(reference.embedding.forward(IDS[10:]), [Span(forked, 2)]))
    torch.testing.assert_close(reference.head.forward(torch.cat(got)), wanted, rtol=0, atol=1e-4)
    whole = reference.logits(IDS)
    assert (whole - wanted).abs().max() > 1e-3, "the heads that were pruned do something in this model"


@pytest.mark.skipif(not can_pack(), reason="this CPU has no packed bfloat16 products")
@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
@torch.inference_mode()
def test_packed_weights_are_cut_as_plain_ones_are(name: str, tiny_folder: Path) -> None:
    """In bfloat16 a pruned layer equals one cut from a copy of it in float32, within its rounding."""
    path = built(name, tiny_folder)
    checkpoint, reference = Checkpoint.open(path), Reference.load(path, torch.bfloat16)
    block, spec = reference.stack.blocks[1], reference.spec
    kept = KeptHeads((0, 2), spec.num_heads, spec.heads_per_group)
    means = torch.randn(spec.num_heads, spec.head_dim, generator=torch.Generator().manual_seed(4))
    pruned = PrunedBlock(block, checkpoint, 1, kept, means=means)
    exact = PrunedBlock(Reference.load(path).stack.blocks[1], checkpoint, 1, kept, means=means)
    rows = torch.randn(7, spec.hidden_size, generator=torch.Generator().manual_seed(5))
    for got, wanted in zip(pruned.qkv(rows.bfloat16()), exact.qkv(rows), strict=True):
        torch.testing.assert_close(got.float(), wanted, rtol=0.05, atol=0.05)
    context = torch.randn(7, pruned.heads * spec.head_dim, generator=torch.Generator().manual_seed(6))
    got, wanted = pruned.attention_output(context.bfloat16()), exact.attention_output(context)
    torch.testing.assert_close(got.float(), wanted, rtol=0.05, atol=0.05)


def test_nothing_pruned_is_the_stack_itself_and_copies_are_bounded(tiny: Path) -> None:
    """So exact requests run as without pruning. Layers are copied once while they fit, and given up beyond."""
    reference, checkpoint = Reference.load(tiny), Checkpoint.open(tiny)
    total, group = reference.spec.num_heads, reference.spec.heads_per_group
    whole, half = KeptHeads(tuple(range(total)), total, group), KeptHeads((0,), total, group)
    stacks = PrunedStacks(reference.stack, checkpoint, 1 << 30)
    assert stacks.with_heads([whole] * 4) is reference.stack
    first, again = stacks.with_heads([half] * 4), stacks.with_heads([half, half, half, whole])
    assert [first.blocks[number] is again.blocks[number] for number in range(4)] == [True, True, True, False]
    assert again.blocks[3] is reference.stack.blocks[3] and stacks.own_bytes > 0
    poor = PrunedStacks(reference.stack, checkpoint, 0)
    assert len(poor.with_heads([half] * 4).blocks) == 4 and poor.own_bytes == 0


def test_stacks_in_use_are_bounded_together(tiny: Path) -> None:
    """One set that takes more is had; another beside it is not, but the same; what is kept and unused gives way, and
    room comes back with the stack that had it."""
    reference, checkpoint = Reference.load(tiny), Checkpoint.open(tiny)
    total, group = reference.spec.num_heads, reference.spec.heads_per_group
    sets = [[KeptHeads((head,), total, group)] * 4 for head in range(4)]
    stacks = PrunedStacks(reference.stack, checkpoint, 1 << 30)
    in_use = stacks.with_heads(sets[0])
    one = stacks.own_bytes
    stacks = PrunedStacks(reference.stack, checkpoint, one // 2, None, one - 1)
    in_use = stacks.with_heads(sets[0])
    for _ in range(2):
        with pytest.raises(NoRoomForSets):
            stacks.with_heads(sets[1])
        assert stacks.bytes_there == one
    assert stacks.with_heads(sets[0]) is not reference.stack and stacks.bytes_there <= 2 * one
    stacks = PrunedStacks(reference.stack, checkpoint, 1 << 30, None, 2 * one)
    in_use = stacks.with_heads(sets[0])
    for each in sets[1:]:
        stacks.with_heads(each)
    assert stacks.bytes_there <= 2 * one
    both = in_use, stacks.with_heads(sets[1])
    assert stacks.with_heads(sets[0]).blocks[3] is in_use.blocks[3]
    with pytest.raises(NoRoomForSets):
        stacks.with_heads(sets[2])
    del in_use, both
    assert stacks.with_heads(sets[2]) is not reference.stack and stacks.bytes_there <= 2 * one


def test_what_cannot_be_pruned_says_so(tiny: Path) -> None:
    """A set for another layer, and as many sets as layers."""
    reference, checkpoint = Reference.load(tiny), Checkpoint.open(tiny)
    with pytest.raises(CannotPrune, match="heads"):
        PrunedBlock(reference.stack.blocks[0], checkpoint, 0, KeptHeads((0,), 8, 2))
    with pytest.raises(ValueError, match="layers"):
        PrunedStacks(reference.stack, checkpoint, 0).with_heads([])
