"""Lines are written in order, whoever reads; and whoever says them never waits and never fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from service.lines import MAX_LINE_BYTES, MAX_WAITING, LineStream, LineWriter, line_stream


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of one; the test may close them."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def read_all(end: int, until: bytes) -> bytes:
    """What comes out of a pipe up to ``until``."""
    got = b""
    while not got.endswith(until):
        got += os.read(end, 2**16)
    return got


def test_lines_come_out_in_order(pipe: tuple[int, int]) -> None:
    """As they were put, umlauts and half characters included."""
    writer = LineWriter(pipe[1])
    for number in range(100):
        writer.put(f"line {number} ä \ud800\n")
    assert writer.flush(10.0)
    expected = "".join(f"line {number} ä \\ud800\n" for number in range(100)).encode()
    assert read_all(pipe[0], b"line 99 \xc3\xa4 \\ud800\n") == expected
    assert writer.dropped == 0


def test_a_reader_that_has_stopped_costs_lines_and_no_time(pipe: tuple[int, int]) -> None:
    """Putting never waits; what is in the queue is bounded; later somebody reads, and is told how many are missing."""
    writer = LineWriter(pipe[1], lambda lines: f"{lines} dropped\n")
    count = MAX_WAITING + 100 + 2**16 // 1000  # A pipe holds 64 KiB.
    for number in range(2 * count):
        writer.put(f"{number} " + 1000 * "x" + "\n")
    assert writer.dropped >= count - MAX_WAITING
    assert not writer.flush(0.1)
    dropped = writer.dropped
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read_all(pipe[0], b"the end\n")))
    reader.start()
    assert writer.flush(30.0)
    writer.put("the end\n")
    reader.join(30.0)
    lines = got[0].decode().splitlines()
    assert f"{dropped} dropped" in lines
    assert len(lines) == 2 * count - dropped + 2  # With what was told, and the end.


@pytest.mark.parametrize("kind", ["closed", "full", "none"])
def test_what_cannot_be_written_is_counted(kind: str, pipe: tuple[int, int]) -> None:
    """The reader has gone, the disk is full, there is no standard error at all: nobody who logs learns of it."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        os.close(pipe[0])
        writer = LineWriter({"closed": pipe[1], "full": full, "none": None}[kind], lambda lines: f"{lines}\n")
        for _ in range(100):
            writer.put("line\n")
        assert writer.flush(10.0)
        assert writer.dropped == 100
    finally:
        os.close(full)


def test_a_descriptor_that_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    """Whoever started the process may have it so: a full pipe is then no error."""
    os.set_blocking(pipe[1], False)
    writer = LineWriter(pipe[1])
    for _ in range(200):
        writer.put(1000 * "x" + "\n")
    writer.put("the end\n")
    assert len(read_all(pipe[0], b"the end\n")) == 200 * 1001 + 8
    assert writer.dropped == 0


def test_a_line_is_cut(pipe: tuple[int, int]) -> None:
    """In the middle of a character too; the next one begins where a line begins."""
    writer = LineWriter(pipe[1])
    writer.put("ä" * MAX_LINE_BYTES + "\n")
    writer.put("next\n")
    first, second, _ = read_all(pipe[0], b"next\n").split(b"\n")
    assert len(first) == MAX_LINE_BYTES - 1 and second == b"next"


def test_a_stream_passes_whole_lines_on(pipe: tuple[int, int]) -> None:
    """``print`` comes out as one line; a progress bar when it is flushed."""
    with os.fdopen(pipe[1], "w", closefd=False) as file:
        stream = line_stream(file)
        assert isinstance(stream, LineStream) and line_stream(stream) is stream
        print("one", "two", file=stream)
        stream.write("\r10 %")
        stream.flush()
        print(" done", file=stream)
        assert read_all(pipe[0], b"done\n") == b"one two\n\r10 % done\n"
        assert stream.fileno() == pipe[1] and not stream.isatty()
