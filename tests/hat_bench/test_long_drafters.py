"""Drafters for long prompts: made once, of text that may be seen, and fit for the model they are made for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from bench.hat import long_drafters
from bench.hat.long_demo import KINDS, SMALL, long_demo
from bench.hat.long_drafters import MADE, drafted, fitting, trained
from bench.hat.prompts import _Author, counted, taught_conversations
from checkpoints import DEMO

from device_agent.chain.model_ends import DeviceParts
from device_agent.speculative.drafters import load_drafters
from models.demo.recipe.sample import is_heldout
from split_model.checkpoint import Checkpoint

FILE = "model.safetensors"


def test_what_is_taught_is_not_held_out() -> None:
    """Neither the stories nor the requests of the training text are of the side that is asked for."""
    author = _Author(random.Random(1), taught=True)
    assert not any(is_heldout(author._sample().key) for _ in range(200))
    asked = _Author(random.Random(1))
    assert all(is_heldout(asked._sample().key) for _ in range(20))


def test_taught_conversations_are_as_long_as_wanted() -> None:
    """About, and they end with a request."""
    lengths = [60, 350, 1200]
    for wanted, messages in zip(lengths, taught_conversations(lengths, 3), strict=True):
        assert counted(messages) == pytest.approx(wanted, abs=40)
        assert messages[-1]["role"] == "user"


@pytest.mark.slow
def test_training_makes_all_that_a_model_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds and the small model, in place of those of the short model; a second call leaves them."""
    monkeypatch.setattr("drafting.distill.making.ANSWER", 4)  # What they bring is not looked at here.
    monkeypatch.setattr("drafting.distill.making.PROMPTS", 1)
    monkeypatch.setattr(long_drafters, "ANSWER_TOKENS", 16)
    monkeypatch.setattr(long_drafters, "_lengths", lambda count: [60] * count)
    model = long_demo(tmp_path / "long")
    before = written(model)
    made = trained(model, tmp_path / "run", conversations=2, tokens=1000, measured_on=2)
    assert drafted(model, made) == model
    after = written(model)
    assert before.keys() == after.keys() and all(before[name] != after[name] for name in before)
    assert after == written(drafted(model, made))
    assert loaded(model) == len(KINDS) + 1


def test_those_that_are_kept_fit(tmp_path: Path) -> None:
    """They are of the stretched model, not of the one that is shipped, and nothing is trained; they replace others."""
    model = long_demo(tmp_path / "long")
    (model / "drafters" / "distilled").write_text("others")
    assert fitting(MADE, model) and not fitting(MADE, DEMO) and not fitting(tmp_path, model)
    drafted(model)
    assert [each.name for each in tmp_path.iterdir()] == ["long"]
    assert loaded(model) == len(KINDS) + 1
    assert all(
        (MADE / f"{name}.safetensors").read_bytes() == data for name, data in written(model).items() if name in KINDS
    )


def written(model: Path) -> dict[str, bytes]:
    """The drafters of a model, by name."""
    files = {name: model / "drafters" / f"{name}.safetensors" for name in KINDS}
    return {name: file.read_bytes() for name, file in {**files, SMALL: model / "drafters" / SMALL / FILE}.items()}


def loaded(model: Path) -> int:
    """How many drafters a device gets from there."""
    checkpoint = Checkpoint.open(model)
    parts = DeviceParts.load(checkpoint, 2, 0, torch.bfloat16)
    wanted = (*KINDS, str(model / "drafters" / SMALL))
    found = load_drafters(wanted, model / "drafters", checkpoint, 2, torch.bfloat16, parts)
    return sum(found.get(name) is not None for name in found.names)
