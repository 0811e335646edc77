"""Rows that branch: each is what it would be if its path were all there is, and one path can be kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import build_tiny

from split_model.checkpoint import Checkpoint
from split_model.kv_cache import KVCache
from split_model.slices import whole
from split_model.stack import Span, Stack
from split_model.tree import TRUNK, Tree

HIDDEN = 32


@pytest.fixture(scope="module", params=["llama", "mistral-window", "qwen3"])
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """All layers of a tiny model; one of them sees a window only."""
    path: Path = build_tiny(request.param, tmp_path_factory.mktemp("tree") / request.param)
    checkpoint = Checkpoint.open(path)
    return Stack.load(checkpoint, whole(checkpoint.spec), torch.float32)


def rows(count: int, seed: int) -> torch.Tensor:
    """Hidden states."""
    return torch.randn((count, HIDDEN), generator=torch.Generator().manual_seed(seed))


def drawn(numbers: list[int], first: int = 0) -> list[int]:
    """Parents made of any numbers: each node follows the trunk or an earlier node."""
    return [number % (first + at + 1) - 1 for at, number in enumerate(numbers)]


@settings(max_examples=25, deadline=None)
@given(
    trunk=st.integers(0, 12),
    first=st.lists(st.integers(0, 99), min_size=1, max_size=6),
    second=st.lists(st.integers(0, 99), max_size=6),
    chosen=st.integers(0, 99),
    seed=st.integers(0, 99),
)
def test_any_tree(stack: Stack, trunk: int, first: list[int], second: list[int], chosen: int, seed: int) -> None:
    """In two steps, over any trunk: every node's row equals its path's last row alone; what is kept of a path goes on
    as if nothing else had been there."""
    parents = [*drawn(first), *drawn(second, len(first))]
    line, nodes = rows(trunk, seed), rows(len(parents), seed + 1)
    cache, tree = stack.new_cache(64), Tree(trunk)
    stack.forward(line, [Span(cache, trunk)])
    found = []
    for begin, end in ((0, len(first)), (len(first), len(parents))):
        if end > begin:
            found.append(stack.forward(nodes[begin:end], [Span(cache, end - begin, tree.add(parents[begin:end]))]))
    outputs = torch.cat(found)
    for node in range(len(parents)):
        alone = stack.new_cache(64)
        path = list(tree.path(node))
        assert tree.position(node) == trunk + len(path) - 1
        expected = stack.forward(torch.cat([line, nodes[path]]), [Span(alone, trunk + len(path))])[-1]
        assert torch.allclose(outputs[node], expected, atol=1e-5)
    path = list(tree.path(chosen % len(parents)))
    cache.keep(trunk, tree.slots(path))
    alone = stack.new_cache(64)
    stack.forward(torch.cat([line, nodes[path]]), [Span(alone, trunk + len(path))])
    more = rows(3, seed + 2)
    assert torch.allclose(stack.forward(more, [Span(cache, 3)]), stack.forward(more, [Span(alone, 3)]), atol=1e-5)


def test_a_line_needs_no_branching() -> None:
    """As long as each node follows the one before it, slots are positions and nothing has to be said."""
    tree = Tree(5)
    assert tree.add([TRUNK, 0]) is None and tree.add([1]) is None and tree.sees(0) is None
    branching = tree.add([1, TRUNK])
    assert branching is not None and branching == tree.sees(3)
    assert branching.positions == (5, 6, 7, 7, 5) and branching.seen == ((0, 1, 3), (4,))
    assert (branching.rows, branching.length, tree.slots(tree.path(3))) == (2, 10, [5, 6, 8])


def test_texts_and_what_follows_them() -> None:
    """The tokens up to a node; and the nodes that go on from a token, of several continuations the first."""
    tree = Tree(5)
    tree.add([TRUNK, 0, 0, 1, TRUNK], [7, 8, 9, 7, 8])
    assert [tree.text_of(node) for node in (TRUNK, 0, 2, 3)] == [[], [7], [7, 9], [7, 8, 7]]
    assert tree.line_of(TRUNK, 7) == [0, 1, 3] and tree.line_of(0, 8) == [1, 3]
    assert tree.line_of(0, 9) == [2] and tree.line_of(TRUNK, 8) == [4] and tree.line_of(3, 7) == []


@pytest.mark.parametrize("parents", [[0], [TRUNK, 1], [-2]])
def test_a_parent_comes_first(parents: list[int]) -> None:
    """A node cannot follow itself, one that is to come, or none; nothing is added then."""
    tree = Tree(0)
    with pytest.raises(ValueError, match="cannot follow"):
        tree.add(parents)
    assert len(tree) == 0


@pytest.mark.parametrize(("position", "slots"), [(-1, []), (0, [2, 1]), (3, [2]), (0, [4]), (5, [])])
def test_only_held_rows_are_kept_in_their_order(position: int, slots: list[int]) -> None:
    """Rows that are not there, or not in order, cannot be kept; the cache stays as it was."""
    cache = KVCache(1, 1, 2, torch.float32, 8)
    cache.append(0, torch.ones(4, 1, 2), torch.ones(4, 1, 2))
    cache.advance(4)
    with pytest.raises(ValueError, match="cannot keep"):
        cache.keep(position, slots)
    assert cache.length == 4


def test_rows_that_are_not_the_next_are_refused(stack: Stack) -> None:
    """What a step is told of its rows must fit the cache they go to."""
    cache = stack.new_cache(16)
    tree = Tree(3)
    branching = tree.add([TRUNK, TRUNK])
    with pytest.raises(ValueError, match="not the next"):
        stack.forward(rows(2, 0), [Span(cache, 2, branching)])
    assert cache.length == 0
