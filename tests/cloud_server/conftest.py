"""Models that several tests of the cloud server use."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import build_tiny


@pytest.fixture(scope="session")
def windowed(tiny_folder: Path) -> Path:
    """Six layers, the first two without and the others with a sliding window: no two stages are alike."""
    path = tiny_folder / "pipeline"
    return path if path.exists() else build_tiny("qwen2-windows", path, num_hidden_layers=6)
