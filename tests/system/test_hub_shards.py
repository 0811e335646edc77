"""A hub model in shards: device and cloud each have only the files with their own layers, and serve together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoints import DEMO
from installation import Installation
from transformers import AutoModelForCausalLM, AutoTokenizer

from split_model.checkpoint import Checkpoint
from split_model.slices import Slice, input_slice, middle_slice, output_slice, slice_parts

pytestmark = pytest.mark.system

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SPLIT, TAIL = 2, 1


def cache_with(home: Path, folder: Path, slices: list[Slice]) -> dict[str, str]:
    """A hub cache in ``home`` that holds only the shards of ``slices``; the environment that makes it be used."""
    checkpoint = Checkpoint.open(folder)
    needed = checkpoint.shards_of([part.name for held in slices for part in slice_parts(checkpoint.spec, held)])
    repository = home / "hub" / "models--acme--demo"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for file in folder.iterdir():
        if file.suffix != ".safetensors" or file.name in needed:
            shutil.copy(file, snapshot)
    shards = set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values())
    assert len(needed) < len(shards), "the cut leaves some shard to the other side"
    return {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}


@pytest.mark.slow
def test_each_side_needs_only_its_own_shards(tmp_path: Path) -> None:
    """The answer is transformers', and the two recognise each other by the commit."""
    whole: Any = AutoModelForCausalLM.from_pretrained(DEMO)
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    folder = tmp_path / "whole"
    whole.save_pretrained(folder, max_shard_size="2MB")
    tokenizer.save_pretrained(folder)
    spec = Checkpoint.open(folder).spec
    device = cache_with(tmp_path / "device", folder, [input_slice(spec, SPLIT), output_slice(spec, TAIL)])
    cloud = cache_with(tmp_path / "cloud", folder, [middle_slice(spec, SPLIT, TAIL)])
    prompt = "Once there was a small boat"
    inputs = tokenizer(prompt, return_tensors="pt")
    output = whole.float().generate(**inputs, max_new_tokens=24, do_sample=False)
    expected = tokenizer.decode(output[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    with Installation(
        tmp_path, Path("acme/demo"), SPLIT, TAIL, device_environment=device, cloud_environment=cloud
    ) as installation:
        assert installation.cloud_state()["digest"] == f"commit:{COMMIT}"
        body = {"model": "acme/demo", "prompt": prompt, "max_tokens": 24, "temperature": 0}
        reply = httpx.post(f"{installation.base}/completions", json=body, timeout=60, trust_env=False).json()
    assert reply["choices"][0]["text"] == expected
