"""`trilby plan` on profiles that were written down."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from group_plans import profile as made_up
from msgspec.structs import replace
from tiny_models import build_tiny, built

from device_agent.plan import main
from device_agent.planning.modes import PLANNERS
from device_agent.planning.profile import written
from device_agent.planning.shape import ModelShape
from device_agent.planning.trials import Manner
from device_agent.profiling.tried import Tried, keep_tried
from split_model.checkpoint import Checkpoint
from split_model.hub import identity

SPEEDS = [1e9, 2e9, 1e9]

Plan = Callable[..., Result]


@pytest.fixture
def plan(tiny_folder: Path, tmp_path: Path) -> Plan:
    """Asks for a plan of a tiny model, on three devices that keep to a formula."""

    def ask(
        *arguments: str, name: str = "llama", memory: float = 1e9, bytes_s: float = 1e8, digest: str = ""
    ) -> Result:
        path = built(name, tiny_folder)
        checkpoint = Checkpoint.open(path, None)
        measured = made_up(ModelShape.of(checkpoint.spec, "float32"), SPEEDS, bytes_s, memory=memory)
        file = tmp_path / "profile.json"
        file.write_text(written(replace(measured, digest=digest or identity(checkpoint))))
        return CliRunner().invoke(main, ["--model", str(path), "--profiles", str(file), *arguments])

    return ask


def test_a_plan_says_who_does_what(plan: Plan) -> None:
    """Every device with its memory, the time of the prompt and of a token, and what bounds them; drawn if asked for."""
    said = plan("--mode", "tensor", "--prompt", "100", "--new", "5", "--draw")
    assert said.exit_code == 0, said.output
    assert said.output.startswith("tensor: 3 devices, portal a\n")
    for words in ("prompt of 100 rows", "each new token", "bound by", "a  computes", "of 1000 MB"):
        assert words in said.output
    assert "#" in said.output and "#" not in plan("--mode", "tensor").output


def test_another_portal(plan: Plan) -> None:
    """One that was measured."""
    assert "portal b" in plan("--mode", "pipeline", "--portal", "b").output
    refused = plan("--mode", "pipeline", "--portal", "kitchen")
    assert refused.exit_code == 1 and "no 'kitchen'; it has a, b, c" in refused.output


def test_what_a_group_tries_is_said(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it will, and once it has what came of it; a plan that is run in one way says nothing."""
    names: list[str] = []

    def before(name: str) -> None:
        names.append(name)

    monkeypatch.setattr("device_agent.plan.tried_before", before)
    said = plan("--mode", "galaxy", "--prompt", "100")
    assert said.exit_code == 0 and said.output.splitlines()[-1].startswith("will try as planned, ")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ("as planned", "nothing overlapped")
    keep_tried(Tried(names[0], 100, words, (0.5, 0.25), 1, Manner(overlap=False)))
    said = plan("--mode", "galaxy", "--prompt", "100")
    assert said.output.splitlines()[-1] == (
        "tried with 100 rows: as planned 500.0 ms, nothing overlapped 250.0 ms (taken)"
    )
    assert "tried" not in plan("--mode", "tensor").output


@pytest.mark.parametrize("mode", PLANNERS)
def test_data_for_programs(mode: str, plan: Plan) -> None:
    """Of every mode, as JSON and nothing else."""
    facts = json.loads(plan("--mode", mode, "--json").output)
    assert facts["mode"] == mode and facts["prompt_s"] > 0 and facts["new_token_s"] > 0


def test_all_modes_are_compared(plan: Plan) -> None:
    """The fastest first; where links are slow one device is as good as any, and that is said."""
    said = plan("--mode", "all", bytes_s=1e4)
    assert said.exit_code == 0
    lines = said.output.splitlines()
    assert lines[0].split()[:2] == ["mode", "devices"]
    assert {line.split()[0] for line in lines[1:9]} == set(PLANNERS)
    assert "tensor: fewer devices would do as well or better: " in said.output
    facts = json.loads(plan("--mode", "all", "--json").output)
    assert [each["mode"] for each in facts] == list(PLANNERS)


def test_who_lacks_how_much(plan: Plan) -> None:
    """Where nothing fits, of a mode or at all, the message names devices and bytes, and nothing is loaded."""
    said = plan("--mode", "voltage", memory=20_000)
    assert said.exit_code == 1 and "voltage does not fit" in said.output and "a " in said.output
    everything = plan("--mode", "all", memory=20_000)
    assert everything.exit_code == 1
    assert all(f"{mode} does not fit" in everything.output for mode in PLANNERS)
    assert "No way fits these devices." in everything.output
    facts = json.loads(plan("--mode", "all", "--json", memory=20_000).output)
    assert all("does not fit" in each["error"] and each["fewer"] is None for each in facts)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"digest": "f" * 64}, "the profile is of the model"),
        ({"file": "{}"}, "this is no profile"),
        ({"file": None}, "No such file"),
        ({"model": "/nowhere/at/all"}, "nowhere"),
    ],
)
def test_what_cannot_be_planned(arguments: dict[str, Any], says: str, plan: Plan, tmp_path: Path, tiny: Path) -> None:
    """A profile of another model, a file that is none, a model that is none: one line that says so."""
    if "digest" in arguments:
        said = plan("--mode", "local", **arguments)
    else:
        file = tmp_path / "given.json"
        if arguments.get("file") is not None:
            file.write_text(arguments["file"])
        said = CliRunner().invoke(
            main, ["--mode", "local", "--model", arguments.get("model", str(tiny)), "--profiles", str(file)]
        )
    assert said.exit_code == 1
    assert says in said.output and said.output.startswith("Cannot plan: ") and said.output.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "rows", "generates"), [("bert-classifier", 64, False), ("vit-classifier", 16, False), ("gpt2", 256, True)]
)
def test_a_prompt_is_as_long_as_the_model_takes(name: str, rows: int, generates: bool, plan: Plan) -> None:
    """A text of all positions, an image of all its patches; and no tokens behind them where none can be."""
    facts = json.loads(plan("--mode", "voltage", "--json", name=name).output)
    assert facts["prompt_rows"] == rows and "new_token_s" not in facts
    shorter = json.loads(plan("--mode", "voltage", "--json", "--prompt", "10", "--new", "3", name=name).output)
    assert shorter.get("new_tokens") == (3 if generates else None)


def test_a_model_on_the_hub_is_planned_without_its_weights(tmp_path: Path) -> None:
    """Of one whose files are many only the small ones have to be here; its commit says which model it is."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    whole = build_tiny("llama", tmp_path / "whole", max_shard_bytes=20_000)
    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for small in ("config.json", "model.safetensors.index.json"):
        shutil.copy(whole / small, snapshot)
    measured = made_up(ModelShape.of(Checkpoint.open(snapshot).spec, "float32"), SPEEDS, 1e8)
    file = tmp_path / "profile.json"
    file.write_text(written(replace(measured, digest=f"commit:{commit}")))
    said = CliRunner().invoke(main, ["--model", str(snapshot), "--profiles", str(file), "--mode", "local"])
    assert said.exit_code == 0, said.output
