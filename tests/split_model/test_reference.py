"""The one-process reference: generation with seeds, ends and limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import build_tiny

from split_model.reference import Reference
from split_model.sampling import SamplingParams

PROMPT = [5, 17, 60, 3]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.load(build_tiny("qwen3", tmp_path_factory.mktemp("model")))


def test_a_seed_fixes_the_text(reference: Reference) -> None:
    """The same seed gives the same tokens, another seed or none gives others; a shorter limit gives a prefix."""
    sampling = SamplingParams(temperature=1.0, seed=11)
    text = reference.generate(PROMPT, 30, sampling)
    assert reference.generate(PROMPT, 30, sampling) == text
    assert reference.generate(PROMPT, 10, sampling) == text[:10]
    assert reference.generate(PROMPT, 30, SamplingParams(temperature=1.0, seed=12)) != text
    unseeded = SamplingParams(temperature=1.0)
    assert reference.generate(PROMPT, 30, unseeded) != reference.generate(PROMPT, 30, unseeded)


def test_an_end_of_sequence_ends_the_text(reference: Reference, tmp_path: Path) -> None:
    """The end's id is the last token given; nothing follows it."""
    text = reference.generate(PROMPT, 30)
    end = text[12]
    ended = Reference.load(build_tiny("qwen3", tmp_path, eos_token_id=end))
    assert ended.generate(PROMPT, 30) == text[: text.index(end) + 1]


def test_edges(reference: Reference) -> None:
    """No tokens asked for are none; an empty prompt is refused; no rows have no logits."""
    assert reference.generate(PROMPT, 0) == []
    assert reference.logits([]).shape == (0, 97)
    with pytest.raises(ValueError, match="empty"):
        reference.generate([], 3)
