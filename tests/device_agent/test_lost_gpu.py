"""A device agent whose GPU is lost: nothing can be computed in its process any more."""

from __future__ import annotations

import subprocess
import sys

import pytest
from checkpoints import DEMO
from processes import with_paths

PROGRAM = """
import sys
from device_agent import agent_process
from device_agent.__main__ import main
from split_model.device import DeviceLost

def lost(device):
    raise DeviceLost("it is lost")

agent_process.wait_for, agent_process.SWEEP_EVERY_S = lost, 0.1
main(["--model", sys.argv[1], "--mode", "local", "--gateway", "ws://127.0.0.1:9", "--threads", "1"])
"""


@pytest.mark.system
def test_its_process_ends_as_failed() -> None:
    """It does not stay connected and fail each request; whoever watches it starts it again."""
    words = [sys.executable, "-c", PROGRAM, str(DEMO)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=with_paths())
    assert done.returncode == 1, done.stderr
    assert "Nothing can be computed here any more: it is lost" in done.stderr
