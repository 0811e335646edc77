"""What a model's `generation_config.json` says of sampling."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from split_model.checkpoint import Checkpoint
from split_model.errors import BadCheckpoint
from split_model.usual_sampling import NOTHING_USUAL, UsualSampling


def test_values_are_those_of_the_file(tiny: Path, tmp_path: Path) -> None:
    """Of members that are asked for; a model without a file, or with one that says nothing of it, has none."""
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "top_k": 20, "temperature": 0.7}))
    usual = Checkpoint.open(folder).usual
    assert usual.of(["temperature", "top_p", "seed"]) == {"temperature": 0.7}
    assert usual.of(["top_k"]) == {"top_k": 20} and usual.of([]) == {}
    (folder / "generation_config.json").write_text('{"max_length": 20, "repetition_penalty": null}')
    assert Checkpoint.open(folder).usual == NOTHING_USUAL
    (folder / "generation_config.json").unlink()
    assert Checkpoint.open(folder).usual == NOTHING_USUAL


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("top_k", True),
        ("repetition_penalty", 0),
        ("min_p", [0.1]),
    ],
)
def test_what_is_no_value_is_refused_by_its_name(name: str, value: Any) -> None:
    """Whoever loads the model learns it, not the client that says nothing."""
    with pytest.raises(BadCheckpoint, match=name):
        UsualSampling.read({name: value})


def test_what_is_not_done_is_named() -> None:
    """Where transformers would say something else by it; a value that changes nothing is none."""
    said = {"num_beams": 4, "no_repeat_ngram_size": 0, "bad_words_ids": [[3]], "suppress_tokens": [], "do_sample": True}
    assert UsualSampling.read(said).ignored == ("num_beams", "bad_words_ids")
