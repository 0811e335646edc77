"""The demo model for long prompts: the same weights, other positions, and drafters that fit it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from bench.hat.lengths import POSITIONS
from bench.hat.long_demo import KINDS, SMALL, long_demo
from checkpoints import DEMO
from oracle import oracle_logits, prompt_for, tolerance

from device_agent.chain.model_ends import DeviceParts
from device_agent.speculative.drafters import load_drafters
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference

LONG = 700
"""Beyond the positions that the demo model was trained on."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It, made anew."""
    return long_demo(tmp_path_factory.mktemp("long") / "demo")


@pytest.mark.parametrize("model", [".", f"drafters/{SMALL}"])
def test_weights_and_tokens_are_the_same(folder: Path, model: str) -> None:
    """Byte for byte; only the configuration differs, and only in its rotations."""
    for name in ("model.safetensors", "tokenizer.json"):
        assert (folder / model / name).read_bytes() == (DEMO / model / name).read_bytes()
    old, new = (json.loads((each / model / "config.json").read_text()) for each in (DEMO, folder))
    changed = {key for key in {*old, *new} if old.get(key) != new.get(key)}
    assert len(changed) == 1 and changed <= {"rope_scaling", "rope_parameters"}
    assert Checkpoint.open(folder / model).spec.max_positions >= POSITIONS


def test_long_prompts_are_as_transformers_has_them(folder: Path) -> None:
    """YaRN, on every position of a prompt longer than those that were trained; without it they are others."""
    ids = prompt_for(folder, LONG)
    wanted = oracle_logits(folder, ids)
    reference = Reference.load(folder)
    with torch.inference_mode():
        found = reference.logits(list(ids))
    # So far out transformers is 2.4e-4 away from its own result in float64, and this code as much, or 2.8e-4 packed.
    assert float((found - wanted).abs().max()) <= 2 * tolerance(wanted)
    assert float((oracle_logits(DEMO, ids) - wanted).abs().max()) > 1


def test_its_drafters_fit(folder: Path) -> None:
    """A device loads each of them, and the small model, for this model."""
    checkpoint = Checkpoint.open(folder)
    parts = DeviceParts.load(checkpoint, 2, 0, torch.bfloat16)
    wanted = (*KINDS, str(folder / "drafters" / SMALL))
    loaded = load_drafters(wanted, folder / "drafters", checkpoint, 2, torch.bfloat16, parts)
    assert sum(loaded.get(name) is not None for name in loaded.names) == len(wanted)
