"""Drafters for long prompts: made once, of text that may be seen, and fit for the model they are made for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from bench.hat.long_demo import KINDS, SMALL, long_demo
from bench.hat.long_drafters import drafted
from bench.hat.prompts import _Author, counted, taught_conversations

from device_agent.drafters import load_drafters
from device_agent.parts import DeviceParts
from models.demo.recipe.sample import is_heldout
from split_model.checkpoint import Checkpoint


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


def test_they_are_made_once_and_fit(tmp_path: Path) -> None:
    """All kinds and the small model, in place of those of the short model; a second call finds them there."""
    model = long_demo(tmp_path / "long")
    before = {name: (model / "drafters" / f"{name}.safetensors").read_bytes() for name in KINDS}
    threads = torch.get_num_threads()
    try:
        assert drafted(model, conversations=2, tokens=1000, measured_on=2) == model
    finally:
        torch.set_num_threads(threads)
    after = {name: (model / "drafters" / f"{name}.safetensors").read_bytes() for name in KINDS}
    assert all(before[name] != after[name] for name in KINDS)
    assert [each.name for each in tmp_path.iterdir()] == ["long"]
    drafted(model)
    assert {name: (model / "drafters" / f"{name}.safetensors").read_bytes() for name in KINDS} == after
    checkpoint = Checkpoint.open(model)
    parts = DeviceParts.load(checkpoint, 2, 0, torch.bfloat16)
    wanted = (*KINDS, str(model / "drafters" / SMALL))
    loaded = load_drafters(wanted, model / "drafters", checkpoint, 2, torch.bfloat16, parts)
    assert sum(loaded.get(name) is not None for name in loaded.names) == len(wanted)
