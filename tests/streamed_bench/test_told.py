"""A process of LIME's bench that ends or says nothing is told of as one error, wherever it is noticed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from bench.streamed.told import PIPES, DeviceFailed, Told

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", ECHO], **PIPES)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):  # Something for it may be left there.
        process.stdin.close()


def test_what_it_says_is_heard(process: subprocess.Popen[str], tmp_path: Path) -> None:
    """Line by line; one that says nothing is no endless wait."""
    told = Told(process, "echo", tmp_path)
    told.say({"one": 1})
    told.say({"two": [2]})
    assert [told.hear(30), told.hear(30)] == [{"one": 1}, {"two": [2]}]
    with pytest.raises(DeviceFailed, match=r"echo has said nothing for 0\.1 s"):
        told.hear(0.1)


def test_one_that_has_ended_is_told(process: subprocess.Popen[str], tmp_path: Path) -> None:
    """To who says something, and to who listens."""
    told = Told(process, "echo", tmp_path)
    process.kill()
    process.wait()
    for call in (lambda: told.say({}), lambda: told.hear(30)):
        with pytest.raises(DeviceFailed, match=f"echo has ended; see {tmp_path}"):
            call()
