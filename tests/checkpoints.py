"""Real checkpoints that tests use: the embedded demo model, and small models kept apart from the product."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "models" / "demo"
DATA = ROOT.parent / "shared" / "data"
REAL_MODELS = ("tinystories-656k", "stories-260k", "draft-180k")


def real_model(name: str) -> Path:
    """The folder of a real small model; the test is skipped where the data is not at hand."""
    path = DATA / "models" / name
    if not path.is_dir():
        pytest.skip(f"{name} is not at hand: the measured data is kept apart from the product")
    return path
