"""The benchmarks of drafting end to end, and that what they measure with can be trusted."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from bench.draft_runs import DEEPEST, CountedLength, Counts
from bench.draft_speeds import Link, groups_of
from bench.draft_texts import Text
from bench.drafting_speed import ABLATIONS
from processes import ROOT

from drafting.length import Fixed

pytestmark = pytest.mark.system


def bench(module: str, *arguments: str) -> str:
    """What a benchmark prints; fails where it does."""
    result = subprocess.run(
        [sys.executable, "-m", f"bench.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_drafting_quick() -> None:
    """All drafters that there are, with no answer that drafting changed."""
    output = bench("drafting", "--quick")
    assert "transformers': **0** of" in output
    assert "without drafting: **0** of" in output
    assert "\n| lookup | 0 | " in output


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_drafting_speed_quick() -> None:
    """Both tables for one device alone, and one behind a link."""
    output = bench("drafting_speed", "--quick")
    for link in ("local", "5 ms, 10 MB/s"):
        row = next(line for line in output.splitlines() if line.startswith(f"| {link} | ours | "))
        assert row.endswith("| 0 of 6 |")
        assert f"\n| {link} | U-shape | " in output


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_ablations_quick() -> None:
    """A table of each, with a row for each of its modes."""
    output = bench("drafting_speed", "--quick", "--ablate")
    for title, (_, modes) in ABLATIONS.items():
        rows = output.split(f"{title}:")[1].split("\n\n")[1].splitlines()[2:]
        assert [row.split(" | ")[1] for row in rows] == [mode.name for mode in modes]
        assert all(row.endswith("| 0 of 6 |") for row in rows)


def test_rounds_are_counted_by_depth() -> None:
    """A depth is tried where all before it was accepted and there was a token; the rule itself is asked and told."""
    length = CountedLength(Fixed(threshold=0.6, cap=8))
    for proposed, accepted in ((0, 0), (3, 3), (3, 1), (8, 7)):
        length.seen(proposed, accepted, 0.1)
    counts = length.counts
    assert (counts.rounds, counts.proposed, counts.accepted, counts.tau) == (4, 14, 11, 1 + 11 / 4)
    assert counts.tried == [3, 3, 2, 1, 1, 1] and counts.kept == [3, 2, 2, 1, 1, 1] and len(counts.by_depth) == DEEPEST
    assert length.seconds == [0.1] * 4 and not length.goes_on([0.5]) and length.goes_on([0.7])
    tree = CountedLength(Fixed(), 2)
    tree.seen(8, 2, 0.1)
    assert tree.counts.kept == [1, 1, 0, 0, 0, 0] == tree.counts.tried
    twice = Counts()
    twice.add(counts)
    twice.add(counts)
    assert twice.tau == counts.tau and twice.tried == [6, 6, 4, 2, 2, 2]


def test_a_round_has_a_text_of_every_kind() -> None:
    """And one round more than are counted, to warm up."""
    texts = [Text(kind, (number,), ()) for kind in ("a", "b") for number in range(2)]
    assert [[(text.kind, *text.prompt) for text in group] for group in groups_of(texts, 2)] == [
        [("a", 0), ("b", 0)],
        [("a", 1), ("b", 1)],
        [("a", 0), ("b", 0)],
    ]
    assert [Link(None).name, Link(20, 1).name] == ["local", "20 ms, 1 MB/s"]
