"""What a model's `generation_config.json` says of sampling."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

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


def test_without_that_file_they_are_as_the_config_says(tiny: Path, tmp_path: Path) -> None:
    """As transformers takes them then: models of some years ago have them there."""
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "repetition_penalty": 1.8, "no_repeat_ngram_size": 2}))
    usual, theirs = Checkpoint.open(folder).usual, AutoModelForCausalLM.from_pretrained(folder).generation_config
    assert usual.repetition_penalty == theirs.repetition_penalty == 1.8
    assert usual.ignored == ("no_repeat_ngram_size",) and theirs.no_repeat_ngram_size == 2
    (folder / "config.json").write_text(json.dumps({**config, "temperature": "hot"}))
    with pytest.raises(BadCheckpoint, match=r"config\.json has temperature"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("said", [-1, 5000, [-1], []])
def test_an_end_that_never_comes_is_none(said: Any, tiny: Path, tmp_path: Path) -> None:
    """A file that says so is not one that says nothing, whatever the config has."""
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 60}))
    assert Checkpoint.open(folder).spec.eos_token_ids == (60,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": said}))
    assert Checkpoint.open(folder).spec.eos_token_ids == ()


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
    assert UsualSampling.read({"watermarking_config": {"bias": 6.0}, "stop_strings": None, "top_k": -1}) == (
        UsualSampling(top_k=0, ignored=("watermarking_config",))
    )
