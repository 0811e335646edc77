"""llama.cpp with float16 weights, as a child process under an interpreter that has it, at its best: no HTTP.

``python -m llama_cpp.server`` serves one request after another, and the wheel has no ``llama-server``, so neither shows
what llama.cpp can do for many sessions. ``llama_decode.py`` does instead what ``llama-server`` does inside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.runs import Run

TESTS = Path(__file__).resolve().parents[2]
PACKAGES = "llama-cpp-python gguf"


class LlamaUnavailable(Exception):
    """This interpreter cannot run llama.cpp; the text says why."""


class LlamaServer:
    """A child that holds the model. One run at a time."""

    def __init__(self, python: str, checkpoint: Path, threads: int) -> None:
        """Raises LlamaUnavailable."""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed in close)
        try:
            self._child = subprocess.Popen(
                [python, "-m", "bench.rivals.llama_decode", str(checkpoint), str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
            )
        except OSError as error:
            self._errors.close()
            raise LlamaUnavailable(f"{python} does not start: {error}") from error
        try:
            self.version = str(self._answer()["version"])
        except LlamaUnavailable:
            self.close()
            raise

    def run(self, prompts: list[list[int]], new: int) -> Run:
        """All prompts at once, ``new`` tokens each. Raises LlamaUnavailable."""
        assert self._child.stdin is not None
        began = time.perf_counter()
        # Of a child that has ended, the answer says why.
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
            self._child.stdin.flush()
        answer = self._answer()
        times = [[began + moment for moment in each] for each in answer["times"]]
        return Run(began, times, answer["tokens"])

    def close(self) -> None:
        """End the child."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._child.wait()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self._child.wait()
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-1:] or ["no reason given"]
            raise LlamaUnavailable(f"{last[0]} (it needs: {PACKAGES})")
        answer: dict[str, Any] = json.loads(line)
        return answer


def start(python: str | None, checkpoint: Path, threads: int) -> LlamaServer | None:
    """The child, or None with the reason printed."""
    if python is None:
        print(f"llama.cpp is left out: no --llama PYTHON given (an interpreter with {PACKAGES})", file=sys.stderr)
        return None
    try:
        return LlamaServer(python, checkpoint, threads)
    except LlamaUnavailable as error:
        print(f"llama.cpp is left out: {error}", file=sys.stderr)
        return None
