"""The model that is to run: whether it can be read, and whether it has room."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from device_agent.doctor import model as module
from device_agent.doctor.model import ModelHere, opened, room
from device_agent.doctor.need import Need, need_of, said
from service.doctor.config import DoctorConfig
from service.doctor.finding import Finding, Status
from split_model.checkpoint import Checkpoint
from split_model.hub import identity
from split_model.offload.budget import GROWS
from split_model.slices import held_bytes, input_slice, output_slice, whole


def looked_at(folder: object, **settings: Any) -> tuple[ModelHere | None, dict[str, Finding]]:
    """What is found of a model."""
    found: list[Finding] = []
    config = DoctorConfig(model=str(folder), **settings)
    here = opened(config, found.append)
    if here is not None:
        room(config, here, found.append)
    return here, {each.check: each for each in found}


def test_a_model_that_can_run(tiny: Path) -> None:
    """Its name, layers and digest are told, and what a device would say to a cloud."""
    here, found = looked_at(tiny, split=1, tail=1, cloud=("ws://cloud:1",))
    assert found["model"].status == found["room"].status == "ok"
    assert "4 layers of 32" in found["model"].seen and "layers 1 to 2 run in the cloud" in found["model"].seen
    assert here is not None and here.hello is not None
    assert (here.hello.digest, here.hello.first_layer) == (identity(Checkpoint.open(tiny)), 1)
    assert here.hello.credential == "" and here.hello.last_layer == 3
    assert found["room there"].figures["weight_bytes"] > 0


def test_what_has_room_is_what_this_machine_has(tiny: Path) -> None:
    """The ends of a model where a cloud is named, and all of it where none is."""
    spec = Checkpoint.open(tiny).spec
    ends = held_bytes(spec, [input_slice(spec, 1), output_slice(spec, 0)], "float32")
    _, there = looked_at(tiny, split=1, cloud=("ws://cloud:1",))
    _, alone = looked_at(tiny, split=1)
    _, local = looked_at(tiny, mode="local")
    assert there["room"].figures["weight_bytes"] == ends
    everything = held_bytes(spec, [whole(spec)], "float32")
    assert alone["room"].figures["weight_bytes"] == local["room"].figures["weight_bytes"] == everything
    assert "room there" not in alone
    _, group = looked_at(tiny, mode="galaxy")
    assert "trilby plan" in group["room"].seen


def test_keys_and_values_count(tiny: Path) -> None:
    """Of one answer, twice, since a cache that grows is there twice for a moment; a limit makes them fewer."""
    spec = Checkpoint.open(tiny).spec
    need = need_of(spec, "bfloat16", [input_slice(spec, 2)], 100)
    assert need.kept == GROWS * 2 * 2 * spec.num_kv_heads * spec.head_dim * 100 * 2
    _, short = looked_at(tiny, mode="local", max_model_len=10)
    assert short["room"].figures["positions"] == 10


@pytest.mark.parametrize(("free", "status"), [(10**9, "ok"), (5 * 10**6, "warn"), (10**6, "fail")])
def test_too_little_memory(free: int, status: Status) -> None:
    """For the longest answer, or not even for the weights."""
    found = said(Need(2 * 10**6, 4 * 10**6, 100), free, "all layers on cpu")
    assert found.status == status and bool(found.todo) is (status != "ok")


@pytest.mark.parametrize(
    ("memory", "free", "status"), [("1GB", 2 * 10**9, "ok"), ("1GB", 10**6, "warn"), ("1kB", 2 * 10**9, "fail")]
)
def test_with_a_limit_of_memory(
    memory: str, free: int, status: Status, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read from the disk at each use, where the limit can be kept at all."""
    monkeypatch.setattr(module, "free_bytes", lambda: free)
    _, found = looked_at(tiny, mode="local", memory=memory)
    assert found["room"].status == status, found["room"]


def test_models_that_cannot_run(tiny: Path, tmp_path: Path) -> None:
    """Each says what is wrong with it; nothing is fetched for what is no folder."""
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    (broken / "model.safetensors").write_bytes(b"cut")
    strange = tmp_path / "strange"
    shutil.copytree(tiny, strange)
    config = json.loads((strange / "config.json").read_text())
    (strange / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    for folder, word in (
        (tmp_path / "nothing", "Name the folder"),
        (tmp_path, "Name the folder"),
        ("nobody/has-this", "first start"),
        (broken, "Get it again"),
        (strange, "another model"),
    ):
        here, found = looked_at(folder)
        assert here is None and found["model"].status == "fail" and word in found["model"].todo, found


@pytest.mark.parametrize(
    ("settings", "status", "word"),
    [
        ({"split": 5}, "fail", "smaller --split"),
        ({"split": 4}, "warn", "no layers are left"),
        ({"split": 0}, "warn", "could read the tokens"),
        ({"mode": "cloud"}, "ok", "layers 0 to 3"),
    ],
)
def test_cuts(settings: dict[str, Any], status: Status, word: str, tiny: Path) -> None:
    """Those that no model has, and those that nobody wants."""
    _, found = looked_at(tiny, **settings)
    assert found["model"].status == status and word in f"{found['model'].seen} {found['model'].todo}"
