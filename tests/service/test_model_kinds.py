"""What the command knows of a model by its config: the same as those who load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.model_kinds import READS, TRANSLATES, undivided
from split_model.families.known import FAMILIES

WRITES = "llama", "vicuna", "mistral", "qwen2", "qwen3", "gpt2", "opt"


def test_every_family_is_of_a_kind() -> None:
    """A family that is added has to be put somewhere."""
    assert READS | TRANSLATES | set(WRITES) >= set(FAMILIES)
    assert set(FAMILIES) >= READS | TRANSLATES


@pytest.mark.parametrize(
    ("config", "does"),
    [
        ({"model_type": "bert"}, "reads whole texts"),
        ({"model_type": "vit"}, "reads images"),
        ({"model_type": "t5"}, "reads one text and writes another"),
        ({"model_type": "t5", "architectures": ["T5EncoderModel"]}, "reads whole texts"),
        ({"model_type": "qwen3"}, None),
        ([], None),
        ({"model_type": ["bert"]}, None),
        ({"model_type": "t5", "architectures": 7}, None),
    ],
)
def test_a_folder_says_what_it_is(tmp_path: Path, config: Any, does: str | None) -> None:
    """By its config; nonsense says nothing."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert undivided(str(tmp_path)) == does


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """No folder, no config, no JSON."""
    assert undivided(str(tmp_path)) is None
    (tmp_path / "config.json").write_text("{")
    assert undivided(str(tmp_path)) is None
    assert undivided("no/such/folder/and/no/hub/id") is None
