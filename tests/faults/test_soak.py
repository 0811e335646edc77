"""What a soak notices, without its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from faults import soak
from faults.soak import Bed, Seen, breaking, record_of, sample


def test_a_process_that_ends_is_noticed() -> None:
    """Once, whether its parent has heard of it (it is gone) or not (a zombie), and the others are looked at on."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    found, seen = Bed([], {"own": os.getpid(), "redis": ended.pid, "member": zombie.pid}, []), Seen()
    for _ in range(4):
        sample(found, seen)
    zombie.wait()
    assert seen.wrong == ["redis has ended", "member has ended"] and len(seen.memory["own"]) == 4
    record = record_of(seen, 1.0)
    assert record["why"] == "redis has ended; member has ended" and record["processes"].keys() == {"own"}


def test_a_fault_that_cannot_be_done_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends none of those behind it."""
    monkeypatch.setattr(soak, "FAULT_EVERY_S", 0.01)

    def fails() -> None:
        raise ProcessLookupError("nobody to be killed")

    seen = Seen()
    breaking(Bed([], {}, [("cloud killed", fails), ("cut", lambda: None)]), time.monotonic() + 0.5, seen)
    assert set(seen.wrong) == {"cloud killed: ProcessLookupError: nobody to be killed"} and seen.counts["cut"] > 1
    assert "cloud killed" not in seen.counts
