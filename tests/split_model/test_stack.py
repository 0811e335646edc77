"""Layers over ragged batches: what they promise beyond the right numbers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import build_tiny

from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.kv_cache import CacheFull, KVCache
from split_model.residence import Blocks
from split_model.slices import Slice, shards, slice_bytes, whole
from split_model.stack import Embedding, Head, Span, Stack


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.open(build_tiny("llama-tied", tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def stack(checkpoint: Checkpoint) -> Stack:
    return Stack.load(checkpoint, Slice(0, 4), torch.float32)


def hidden_rows(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed))


def cache_after(stack: Stack, rows: int, limit: int = 100, seed: int = 0) -> KVCache:
    cache = stack.new_cache(limit)
    stack.forward(hidden_rows(rows, seed), [Span(cache, rows)])
    return cache


def contents(cache: KVCache) -> list[Any]:
    held, _ = cache.read(0)
    none = torch.empty(0, held.shape[0], held.shape[2])
    return [cache.length, *(held.clone() for layer in range(4) for held in cache.append(layer, none, none))]


def same(left: list[Any], right: list[Any]) -> bool:
    return left[0] == right[0] and all(torch.equal(a, b) for a, b in zip(left[1:], right[1:], strict=True))


def test_a_step_that_cannot_be_done_changes_nothing(stack: Stack) -> None:
    """A full cache, wrong rows, a shared cache or a wrong shape raise before any cache is touched."""
    first, full = cache_after(stack, 5), cache_after(stack, 7, limit=8, seed=1)
    before = contents(first), contents(full)
    for error, rows, spans in (
        (CacheFull, 4, [Span(first, 2), Span(full, 2)]),
        (ValueError, 5, [Span(first, 2), Span(full, 1)]),
        (ValueError, 2, [Span(first, 1), Span(first, 1)]),
        (ValueError, 1, [Span(first, 2), Span(full, -1)]),
    ):
        with pytest.raises(error):
            stack.forward(hidden_rows(rows), spans)
    for wrong in (hidden_rows(1).double(), hidden_rows(1)[:, :31], hidden_rows(1)[0]):
        with pytest.raises(ValueError, match="hidden"):
            stack.forward(wrong, [Span(first, 1)])
    assert same(contents(first), before[0]) and same(contents(full), before[1])


def test_a_step_that_fails_half_way_changes_nothing(stack: Stack) -> None:
    """An exception in the middle of the layers leaves the length, and so the content, as it was."""

    class Broken:
        window = qkv = None

        def input_norm(self, *_: object) -> None:
            raise MemoryError

    cache = cache_after(stack, 5)
    before, blocks = contents(cache), stack.blocks
    broken = Stack(stack.spec, stack.slice, Blocks([*blocks[:2], cast(Block, Broken()), blocks[3]]), torch.float32)
    with pytest.raises(MemoryError):
        broken.forward(hidden_rows(3), [Span(cache, 3)])
    assert same(contents(cache), before)


@settings(max_examples=25)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 9))
def test_rows_after_a_truncation_are_as_if_the_others_never_were(
    stack: Stack, kept: int, rejected: int, new: int
) -> None:
    """Truncate, then forward: bit for bit what a session gives that never saw the rejected rows."""
    cache = cache_after(stack, kept)
    fresh = cache_after(stack, kept)
    stack.forward(hidden_rows(rejected, seed=5), [Span(cache, rejected)])
    cache.truncate(kept)
    rows = hidden_rows(new, seed=6)
    found = stack.forward(rows, [Span(cache, new)])
    assert torch.equal(found, stack.forward(rows, [Span(fresh, new)]))
    assert same(contents(cache), contents(fresh))


def test_no_layers_are_the_identity(checkpoint: Checkpoint) -> None:
    """With no layers the rows come back as they are, and the cache counts them all the same."""
    stack = Stack.load(checkpoint, Slice(2, 2), torch.float32)
    cache = stack.new_cache(10)
    rows = hidden_rows(4)
    assert stack.forward(rows, [Span(cache, 4)]) is rows
    assert (cache.length, cache.nbytes, stack.loaded_bytes) == (4, 0, 0)
    with pytest.raises(CacheFull):
        stack.forward(hidden_rows(7), [Span(cache, 7)])


def test_spans_without_rows_and_batches_without_spans(stack: Stack) -> None:
    """Empty work is done at once and changes nothing."""
    cache, other = cache_after(stack, 5), cache_after(stack, 3)
    before = contents(other)
    assert stack.forward(hidden_rows(0), []).shape == (0, 32)
    assert stack.forward(hidden_rows(0), [Span(cache, 0)]).shape == (0, 32)
    assert stack.forward(hidden_rows(2), [Span(cache, 2), Span(other, 0)]).shape == (2, 32)
    assert cache.length == 7 and same(contents(other), before)


def test_the_input_is_left_as_it_was(stack: Stack) -> None:
    """The residual stream starts as a copy: callers keep their shallow states."""
    rows = hidden_rows(3)
    before = rows.clone()
    stack.forward(rows, [Span(stack.new_cache(3), 3)])
    assert torch.equal(rows, before)


def test_a_shard_cannot_run_alone(checkpoint: Checkpoint) -> None:
    """Partial sums are not an answer: forward on a shard is refused."""
    shard = Stack.load(checkpoint, Slice(0, 1, kv_groups=range(0, 1)), torch.float32)
    with pytest.raises(ValueError, match="partial sums"):
        shard.forward(hidden_rows(1), [Span(shard.new_cache(3), 1)])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=3), st.data())
def test_a_group_of_shards_is_the_stack(
    checkpoint: Checkpoint, stack: Stack, shares: list[tuple[float, float]], data: st.DataObject
) -> None:
    """Members with any shares of heads and columns, each with a cache of its heads, give the stack's rows."""
    groups, columns = zip(*shares, strict=True)
    if not (sum(groups) and sum(columns)):
        return
    members = [
        Stack.load(checkpoint, held, torch.float32) for held in shards(checkpoint.spec, Slice(0, 4), groups, columns)
    ]
    caches, cache = [member.new_cache(40) for member in members], stack.new_cache(40)
    partials: list[torch.Tensor | None] = [None] * len(members)
    barrier = threading.Barrier(len(members), timeout=60)

    def run(number: int, rows: torch.Tensor) -> torch.Tensor:
        def combine(partial: torch.Tensor) -> torch.Tensor:
            barrier.wait()
            partials[number] = partial
            barrier.wait()
            return torch.stack([each for each in partials if each is not None]).sum(0)

        return members[number].forward(rows, [Span(caches[number], len(rows))], combine)

    with ThreadPoolExecutor(len(members)) as threads:
        for count in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)):
            rows = hidden_rows(count, seed=count)
            wanted = stack.forward(rows, [Span(cache, count)])
            for found in [threads.submit(run, number, rows) for number in range(len(members))]:
                torch.testing.assert_close(found.result(), wanted, rtol=0, atol=1e-4)


def test_tied_ends_share_their_memory(checkpoint: Checkpoint) -> None:
    """Embedding and head of one process hold the tied matrix once, and together take what the slice says."""
    spec = checkpoint.spec
    embedding = Embedding.load(checkpoint, torch.float32)
    head = Head.load(checkpoint, spec, torch.float32, embedding)
    alone = Head.load(checkpoint, spec, torch.float32)
    layers = Stack.load(checkpoint, whole(spec), torch.float32)
    held = embedding.loaded_bytes + layers.loaded_bytes + head.loaded_bytes
    assert held == slice_bytes(spec, whole(spec), torch.float32)
    rows = hidden_rows(3)
    torch.testing.assert_close(head.forward(rows), alone.forward(rows), rtol=0, atol=1e-5)
    with torch.inference_mode():
        embedding.weight.zero_()
    assert not head.forward(rows).any() and alone.forward(rows).any()


def test_a_tied_head_in_bfloat16_shares_too(checkpoint: Checkpoint) -> None:
    """Also where a matrix of its own would be packed: the head takes no memory beside its norm."""
    embedding = Embedding.load(checkpoint, torch.bfloat16)
    head = Head.load(checkpoint, checkpoint.spec, torch.bfloat16, embedding)
    assert head.loaded_bytes == head.norm.nbytes
    alone = Head.load(checkpoint, checkpoint.spec, torch.bfloat16)
    rows = hidden_rows(3).bfloat16()
    torch.testing.assert_close(head.forward(rows), alone.forward(rows), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("ids", [[97], [-1], [[1, 2]]])
def test_ids_outside_the_vocabulary_are_refused(checkpoint: Checkpoint, ids: list[int]) -> None:
    """A wrong token id is a ValueError, not a crash in a kernel."""
    with pytest.raises(ValueError, match="token ids"):
        Embedding.load(checkpoint, torch.float32).forward(ids)
