"""The benchmarks of the cloud run end to end, so that they never rot; what they measure is no test's business."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from processes import ROOT

pytestmark = pytest.mark.system

SHOWN = {
    "interference": ("| quiet |", "| prompts |", "| prompts, chunking off |"),
    "second_turn": ("| demo, float32, loopback |", "| demo, float32, 50 Mbit/s |"),
    "soak": ("| requests, and those that failed | 12, **0** |", "| sessions and devices at the end | **0**, **0** |"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_quick(name: str) -> None:
    """The smallest run of each, with its table at the end."""
    result = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--quick"],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"},
    )
    assert result.returncode == 0, result.stderr
    for line in SHOWN[name]:
        assert line in result.stdout
