"""What ``bench-accuracy`` measures is what transformers says of the model, and its intervals are those of the books."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import pytest
from bench.accuracy_parts import Api, Figure, perplexity, questions, skills, wilson
from checkpoints import DEMO
from installation import Installation
from oracle import oracle_logits

from device_agent.answering.tokenizer import Tokenizer

pytestmark = pytest.mark.system


def test_intervals() -> None:
    """Wilson's, as tabulated; ± 0.7 points for 4,000 questions; of pairs only what differs counts."""
    assert wilson(0.9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-3)
    low, high = Figure("all", "%", (1.0,) * 3800 + (0.0,) * 200).interval
    assert (high - low) / 2 < 0.7
    one, other = Figure("all", "%", (1.0, 0.0) * 200), Figure("all", "%", (1.0, 0.0) * 199 + (0.0, 0.0))
    above = one.above(other)
    assert above is not None and above == pytest.approx((0.25, 0.49), abs=0.01)
    assert one.above(one) == (0.0, 0.0) and one.above(Figure("all", "%", (1.0,))) is None


def test_questions_are_fresh_and_the_same_in_every_run() -> None:
    """Of all skills, none twice."""
    asked = questions(100)
    assert asked == questions(100) and len({each.key for each in asked}) == len(asked) >= 95
    assert len({each.skill for each in asked}) == 6


def test_figures_are_transformers(installation: Installation, tmp_path: Path) -> None:
    """The perplexity of a text, and skills that the demo model has."""
    text, tokenizer = tmp_path / "text.txt", Tokenizer.load(DEMO, ())
    text.write_text("Once upon a time there was a small fox who lived in a green house. " * 40, encoding="utf-8")
    with closing(Api(installation.base)) as api:
        found = perplexity(api, text, tokenizer.text, 1)
        every, *each = skills(api, 12)
    ids = tuple(tokenizer.text(text.read_text(encoding="utf-8"))[:512])
    rows = oracle_logits(DEMO, ids)[:-1].log_softmax(-1)
    assert len(ids) == 512 and len(found.values) == 1
    assert found.value == pytest.approx(math.exp(-float(rows[range(511), ids[1:]].mean())), rel=1e-3)
    assert every.value >= 50 and sum(len(figure.values) for figure in each) == len(every.values)
