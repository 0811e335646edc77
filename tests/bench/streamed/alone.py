"""Another program on one device of the largest kind: its quota, its memory limit, and a disk of its own."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.streamed.bed import SCENARIO, SPARE, DeviceFailed, resident
from bench.streamed.cases import DTYPE
from bench.streamed.portal import Result
from bench.testbed.bed import Testbed
from bench.testbed.processes import environment
from bench.testbed.scenario import load

MODULES = {"accelerate": "bench.rivals.accelerate_disk", "llama.cpp": "bench.rivals.llama_mmap"}
DEVICE = "device-1"
LOADED_WITHIN_S, GENERATED_WITHIN_S = 300.0, 300.0


def run_alone(
    method: str,
    python: str,
    folder: Path,
    checkpoint: Path,
    budget: int,
    cores: float,
    disk_mb_s: float,
    prompt: Sequence[int],
    new: int,
) -> tuple[Result, list[int]]:
    """A job of one session on a bed of its own, and the device's limit in bytes.

    The limit is what the process takes before it has a model, the budget, and what members have to spare. Raises
    DeviceFailed.
    """
    with ExitStack() as stack:
        bed = stack.enter_context(Testbed(load(SCENARIO, {"mb_s": "0", "disk_mb_s": f"{disk_mb_s:g}"}), folder))
        log = stack.enter_context((folder / "devices.log").open("ab"))
        on_disk = bed.disk(DEVICE) / "weights"
        on_disk.mkdir()
        words = [python, "-m", MODULES[method], str(checkpoint), str(on_disk), DTYPE]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "stderr": log}
        process = bed.spawn(DEVICE, words, env=environment({"OMP_NUM_THREADS": "1", "HOME": str(on_disk)}), **pipes)
        told = _Told(process, f"{method} has ended or says nothing; see {folder}")
        told.hear(LOADED_WITHIN_S)
        host = bed.host(DEVICE)
        limit = resident(process.pid) + budget + SPARE
        host.group.set_memory(limit // 10**6)
        told.say({})
        told.hear(LOADED_WITHIN_S)
        host.set_cores(cores)
        told.say({"prompt": list(prompt), "new": new})
        said = told.hear(GENERATED_WITHIN_S)
        times = said["times"]
        return Result(generated_s=times[-1], steps_s=times, tokens=[said["tokens"]]), [limit]


class _Told:
    """A process that is told and tells lines of JSON."""

    def __init__(self, process: subprocess.Popen[str], silent: str) -> None:
        self._process, self._silent = process, silent
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def say(self, message: dict[str, Any]) -> None:
        """One line to it. Raises DeviceFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise DeviceFailed(self._silent) from None

    def hear(self, within_s: float) -> dict[str, Any]:
        """The next line from it. Raises DeviceFailed."""
        try:
            line = self._lines.get(timeout=within_s)
        except queue.Empty:
            line = ""
        if not line:
            raise DeviceFailed(self._silent)
        found: dict[str, Any] = json.loads(line)
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")
