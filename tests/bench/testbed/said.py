"""What a program says on its standard output, waited for no longer than one is told to."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from time import monotonic
from typing import Any

PIECE_BYTES = 65536


def lines(process: subprocess.Popen[Any], within_s: float, awaited: str) -> Iterator[str]:
    """Every line, up to the end of the output. Nobody else reads it meanwhile.

    Args:
        within_s: for all of it.
        awaited: what this is, for the error.

    Raises:
        RuntimeError: it has not ended by then; the program is killed.
    """
    assert process.stdout is not None
    file, deadline, left = process.stdout.fileno(), monotonic() + within_s, b""
    while select.select([file], [], [], max(0.0, deadline - monotonic()))[0]:
        data = os.read(file, PIECE_BYTES)
        if not data:
            if left:
                yield left.decode()
            return
        *whole, left = (left + data).split(b"\n")
        yield from (each.decode() for each in whole)
        if monotonic() >= deadline:
            break
    process.kill()
    raise RuntimeError(f"waited {within_s:g} s in vain for {awaited}")


def end_of(process: subprocess.Popen[Any], within_s: float, awaited: str) -> int:
    """A program's exit status. Raises RuntimeError where it does not end by then; it is killed."""
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise RuntimeError(f"waited {within_s:g} s in vain for {awaited}") from None
