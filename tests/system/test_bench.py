"""Benchmarks run end to end, so that they never rot; what they measure is no test's business."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from processes import ROOT

pytestmark = pytest.mark.system


@pytest.mark.slow
def test_overhead_quick() -> None:
    """One short round of every way, with a table at the end."""
    result = subprocess.run(
        [sys.executable, "-m", "bench.overhead", "--quick"],
        capture_output=True, text=True, timeout=900, cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for way in ("ushape, float32", "ushape, bfloat16", "local, float32"):
        assert f"| {way} | **" in result.stdout
