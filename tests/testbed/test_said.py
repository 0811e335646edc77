"""What a program says is heard line by line, and nobody waits for it for ever."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from bench.testbed.said import end_of, lines


def program(code: str) -> subprocess.Popen[bytes]:
    """One that runs this."""
    return subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE)


def test_every_line_is_heard_as_it_comes() -> None:
    """Long before the end of the program, in pieces or many at once, with or without an end to the last one."""
    code = "import sys, time; print('one'); sys.stdin.read(0); time.sleep(0.5); print('two\\nthr', end='')\n"
    with program(f"{code}time.sleep(0.1); print('ee', end='')") as process:
        heard = [(line, time.monotonic()) for line in lines(process, 30.0, "three lines")]
        assert [line for line, _ in heard] == ["one", "two", "three"]
        assert heard[1][1] - heard[0][1] > 0.3
        assert end_of(process, 30.0, "its end") == 0


@pytest.mark.parametrize("code", ["import time; print('begun'); time.sleep(100)", "while True: print('on')"])
def test_one_that_does_not_come_to_an_end(code: str) -> None:
    """Silent or talking, it is killed, and the error says what was waited for."""
    with program(code) as process:
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="waited 1 s in vain for the end of it"):
            for _ in lines(process, 1.0, "the end of it"):
                pass
        assert time.monotonic() - began < 20.0
        assert process.wait(20.0) == -9


def test_one_that_only_stops_talking() -> None:
    """Is killed as well."""
    code = "import os, time; os.close(1); time.sleep(100)"
    with program(code) as process:
        assert list(lines(process, 30.0, "nothing")) == []
        with pytest.raises(RuntimeError, match="in vain for it to end"):
            end_of(process, 0.2, "it to end")
        assert process.wait(20.0) == -9
