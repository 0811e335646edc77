"""A profile is of a device as it may be used: who may use less of it measures for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_agent.profiling.beside import BYTES_S, measured_cost
from device_agent.profiling.machine import MeasuredOn
from split_model import control_groups


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of all control groups; this process is in one called jobs/one."""
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "_OWN", tmp_path / "own")
    (tmp_path / "own").write_text("5:cpu,cpuacct:/jobs/one\n0::/jobs/one\n")
    for folder in ("jobs/one", "cpu/jobs/one"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({}, 0.0),
        ({"jobs/one/cpu.max": "max 100000\n"}, 0.0),
        ({"jobs/one/cpu.max": "50000 100000\n"}, 0.5),
        ({"jobs/one/cpu.max": "50000 100000\n", "jobs/cpu.max": "20000 100000\n"}, 0.2),
        ({"cpu/jobs/one/cpu.cfs_quota_us": "2500\n", "cpu/jobs/one/cpu.cfs_period_us": "10000\n"}, 0.25),
        ({"cpu/jobs/one/cpu.cfs_quota_us": "-1\n", "cpu/jobs/one/cpu.cfs_period_us": "10000\n"}, 0.0),
        ({"cpu/jobs/one/cpu.cfs_quota_us": "2500\n"}, 0.0),
    ],
)
def test_a_limit_of_the_cpu_is_part_of_it(files: dict[str, str], share: float, system: Path) -> None:
    """By either version of control groups, of its own group or one above; 0 where there is none."""
    for name, text in files.items():
        (system / name).write_text(text)
    assert MeasuredOn.here().share == share


def test_a_transfer_takes_something_or_nothing() -> None:
    """Of the time of a product beside it, and never more than all."""
    assert 0 <= measured_cost() <= 1 / BYTES_S
