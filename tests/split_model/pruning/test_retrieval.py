"""Scores that are found again, and what heads look like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_model.pruning.features import LENGTH, Features, features
from split_model.pruning.retrieval import MOST_HEADS, ImportanceStore, TenantStores
from split_model.pruning.watched import Attended, Layers
from split_model.reference import Reference


def heads(count: int, seed: int, kinds: int = 4, spread: float = 0.02) -> Features:
    """Heads of a few kinds, each near its kind."""
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(99).normal(size=(kinds, 16 + LENGTH))
    rows = base[np.arange(count) % kinds] + spread * rng.normal(size=(count, 16 + LENGTH))
    apart, together = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (rows[:, :16], rows[:, 16:]))
    return Features(apart.astype(np.float32), together.astype(np.float32))


@given(st.integers(0, 50), st.booleans())
def test_a_head_that_looks_like_an_earlier_one_gets_its_score(seed: int, made_anew: bool) -> None:
    """Of four kinds of heads one of each is scored; all others find the score of their kind, also once the clusters
    were made anew. With tau below 0 nothing is reused, and a kind never seen finds nothing."""
    store, never = ImportanceStore(), ImportanceStore(tau=-1.0)
    for each in (store, never):
        each.add(heads(4, seed), [0.1, 0.2, 0.3, 0.4])
        if made_anew:
            each.recluster()
    assert store.clusters == 4 and len(store) == 4
    assert store.find(heads(8, seed + 1)) == [0.1, 0.2, 0.3, 0.4] * 2
    assert never.find(heads(4, seed)) == [None] * 4
    other = Features(-heads(1, seed).apart, -heads(1, seed).together)
    assert store.find(other) == [None]


def test_memory_is_bounded_and_the_oldest_go() -> None:
    """However many heads come; those that stay are in clusters again."""
    store = ImportanceStore(most=10)
    for seed in range(5):
        store.add(heads(4, seed), [float(seed)] * 4)
    assert len(store) == 10 and set(store.find(heads(4, 4, spread=0))) <= {3.0, 4.0}
    assert MOST_HEADS * (2 * 128 + LENGTH) * 4 < 4 << 20


def test_nothing_is_found_across_tenants_and_few_tenants_are_kept() -> None:
    """One tenant's heads are strangers to another, and a tenant that comes back after many others begins anew."""
    stores = TenantStores(most=2)
    stores.of("one").add(heads(4, 0), [1.0] * 4)
    assert stores.of("two").find(heads(4, 0)) == [None] * 4
    assert stores.of("one").find(heads(4, 0)) == [1.0] * 4
    stores.of("two").add(heads(4, 0), [2.0] * 4)
    for left in (1, 0, 0):  # One tenant's at a time.
        stores.recluster()
        assert sum(stores.of(each).is_stale for each in ("one", "two")) == left
    assert stores.of("one").find(heads(4, 0)) == [1.0] * 4
    stores.of("three"), stores.of("two")
    assert len(stores.of("one")) == 0


def test_heads_look_the_same_wherever_a_text_stands(tiny: Path) -> None:
    """Queries and keys are compared as they were before the rotation, and each feature has length 1."""
    reference = Reference.load(tiny)
    layers = Layers(reference.embedding, (reference.stack,), reference.head)
    found: list[Features] = []

    def see(seen: Attended) -> torch.Tensor:
        found.append(features(seen))
        return seen.context

    layers.run(0, reference.embedding.forward([5] * 12), [12], see)
    layers.run(0, reference.embedding.forward([5] * 40), [40], see)
    for short, long in zip((found[0].apart, found[0].together), (found[1].apart, found[1].together), strict=True):
        np.testing.assert_allclose(short, long, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-5)
