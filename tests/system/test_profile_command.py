"""`trilby profile` and `trilby plan` as people call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from processes import printed_by

from device_agent.plan import main as plan
from device_agent.planning.profile import read
from split_model.checkpoint import Checkpoint
from split_model.hub import identity

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty place for profiles."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_one_device(tiny: Path, tmp_path: Path, cache: Path) -> None:
    """It is measured, shown, kept, and written where it is asked for."""
    file = tmp_path / "here.json"
    shown, bars = printed_by(
        "service.command", "profile", "--model", str(tiny), "--quick", "--out", str(file), within_s=150
    )
    assert "milliseconds of a layer" in shown and "key_value" in shown and "alone: prompt" in shown
    assert "measuring: 100 of 100 %" in bars
    found = read(file.read_bytes(), identity(Checkpoint.open(tiny)))
    assert [device.name for device in found.devices] == ["device"]
    kept = [each for each in cache.rglob("*.json") if str(each) in shown]
    assert [read(each.read_bytes()) for each in kept] == [found]


@pytest.mark.slow
def test_several_devices_of_this_machine(tiny: Path, tmp_path: Path) -> None:
    """Each is measured, and the links between all; trilby plan reads what was written."""
    file = tmp_path / "home.json"
    shown, _ = printed_by(
        *("service.command", "profile", "--model", str(tiny), "--quick", "--devices", "2", "--out", str(file)),
        within_s=150,
    )
    assert "device-2: memory" in shown and "all-reduce" in shown
    found = read(file.read_bytes(), identity(Checkpoint.open(tiny)))
    assert [device.name for device in found.devices] == ["device", "device-2"]
    assert len(found.links) == 2 and len(found.collectives) == 3
    planned = CliRunner().invoke(plan, ["--mode", "all", "--json", "--model", str(tiny), "--profiles", str(file)])
    assert {each["mode"] for each in json.loads(planned.output)} >= {"voltage", "galaxy", "tensor", "pipeline", "local"}
