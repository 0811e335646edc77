"""What the tests of the device agent share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import build_tiny


@pytest.fixture
def tiny(tiny_folder: Path) -> Path:
    """A tiny Llama."""
    path = tiny_folder / "llama"
    return path if path.exists() else build_tiny("llama", path)


@pytest.fixture(autouse=True)
def dialled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the pause before dialling again."""
    monkeypatch.setattr("device_agent.redial.delay_s", lambda attempt, random: 0.01)
