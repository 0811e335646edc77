"""Tests of what is said of heads that are left out of real weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bench.accuracy_parts import Figure
from bench.accuracy_pruned import Cell, Without, cells, mask, recorded
from bench.accuracy_pruned_page import at_equal_time, interpolated, shown
from bench.edge import case, limited
from checkpoints import DEMO

from device_agent.planning.pruning import pruned_sets
from split_model.checkpoint import Checkpoint
from split_model.pruning.orders import by_chance
from split_model.pruning.stack import PrunedStacks
from split_model.reference import Reference
from split_model.stack import Span


@pytest.mark.parametrize("stands", [False, True])
def test_texts_of_a_batch_go_without_their_own_heads(stands: bool) -> None:
    """As layers without these compute them, prompt and a token behind it, whether something stands for heads or not."""
    model, checkpoint = Reference.load(DEMO), Checkpoint.open(DEMO)
    spec, texts = model.spec, ([1, 5, 9, 200], [1, 7, 300, 20, 30, 41])
    sizes = spec.num_layers, spec.num_heads, spec.head_dim
    means = torch.randn(sizes, generator=torch.Generator().manual_seed(0)) if stands else None
    narrower = PrunedStacks(model.stack, checkpoint, 1 << 28, means)
    orders = [by_chance(spec.num_layers, spec.num_heads, seed) for seed in range(2)]
    sets = [pruned_sets(order, 12, *sizes[:2], spec.heads_per_group) for order in orders]
    kept, caches = torch.stack([mask(each) for each in sets]), [model.stack.new_cache(9) for _ in texts]
    alone = [narrower.with_heads(each) for each in sets]
    own = [stack.new_cache(9) for stack in alone]
    for rows in (texts, ([11], [12])):
        spans = [Span(cache, len(ids)) for cache, ids in zip(caches, rows, strict=True)]
        hidden = model.embedding.forward([one for ids in rows for one in ids])
        found = model.stack.run(hidden, Without(spans, kept, means)).split_with_sizes([len(ids) for ids in rows])
        for stack, cache, ids, each in zip(alone, own, rows, found, strict=True):
            wanted = stack.forward(model.embedding.forward(ids), [Span(cache, len(ids))])
            torch.testing.assert_close(each, wanted, rtol=1e-4, atol=1e-3)


def test_records_are_beside_the_whole_models() -> None:
    """Pair by pair; and the page has a row of a share as soon as one way was measured."""
    whole, cell = Cell(DEMO), Cell(DEMO, "random", 0.25)
    all_right = Figure("answers", "%", (1.0, 1.0, 0.0, 1.0))
    first = recorded(whole, all_right, {}) | {"time": 1.0}
    record = recorded(cell, Figure("answers", "%", (1.0, 0.0, 0.0, 1.0)), first) | {"time": 0.9}
    assert "above" not in first and record["above"] == -25 and record["half"] == pytest.approx(49)
    assert len({each.name for each in cells()}) == len(cells()) and {whole, cell} <= set(cells())
    text = shown({whole.name: first, cell.name: record})
    assert text.startswith("demo, 75.00 per cent") and "| 25.0% | 0.90 | – |" in text and "-25.00 ± 49.00" in text
    assert shown({}) == case.shown({}) == "*Not measured yet.*"


def test_ways_are_compared_in_the_time_that_scores_take() -> None:
    """LiScore as it was measured, the others between their shares; where there is time for all heads they lose none,
    and where none is as fast nothing is said."""
    ways = {"liscore": (0.9, -3.0), "effect, means": (0.8, -2.0), "random": (0.95, -4.0)}
    cells = {Cell(DEMO, way, 0.25): each for way, each in ways.items()}
    found = {
        cell.name: {"model": "demo", "way": cell.way, "out": 0.25, "time": t, "above": a}
        for cell, (t, a) in cells.items()
    }
    assert "| demo | 0.90 | -1.00 | – | -3.00 | – | – | – |" in at_equal_time(found)
    found[Cell(DEMO, "liscore", 0.25).name]["time"] = 1.2
    assert "| demo | 1.20 | +0.00 | – | -3.00 | – | – | +0.00 |" in at_equal_time(found)
    assert at_equal_time({}) == limited.shown({}) == "*Not measured yet.*"
    assert interpolated([(1.0, 0.0), (0.5, 4.0)], 0.75) == 2 and interpolated([(1.0, 0.0)], 0.5) is None


def test_a_limit_that_no_way_keeps_is_said() -> None:
    """By limit and way: of how many texts, how many heads, and whether they were read in time."""
    good = {"read": 3, "kept": 2, "lost": 0.5, "time": 0.8, "choosing": 0.25, "pruned": 12.0}
    rows = [{"by": "liscore", "share": 0.7, "read": 0}, {"by": "effect", "share": 0.9, **good}]
    text = limited.shown({"heads": 48, "texts": 4, "rows": rows})
    assert text.splitlines()[2:] == [
        "| 90% | effect | 3 of 4 | 25% | 0.80 (25% of it choosing) | 2 | +0.500 |",
        "| 70% | liscore | 0 of 4 | – | – | – | – |",
    ]


def test_a_case_says_of_each_head_who_computes_it(tmp_path: Path) -> None:
    """A quarter of the demo model's heads is left out, by pairs; what is left goes to the fast devices."""
    case.write(tmp_path, quick=True)
    assert not list(tmp_path.iterdir())
    found = case.measure()
    where = [at for layer in found["layers"] for _, at in layer]
    assert len(where) == 48 and where.count(0) == 12 and set(where) == {0, 1, 2}
    assert case.shown(found).count("left out") == 12
