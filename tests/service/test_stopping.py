"""What the signals mean."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT

from service.stopping import SAME_S, Urgency, stop_signals, urgency_after

NONE, DRAIN, AT_ONCE, HARD = Urgency
LATER = SAME_S + 0.1


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ([(signal.SIGTERM, 99.0)], DRAIN),
        ([(signal.SIGTERM, 99.0), (signal.SIGTERM, 0.1)], DRAIN),
        ([(signal.SIGHUP, 99.0), (signal.SIGTERM, 0.1)], DRAIN),
        ([(signal.SIGTERM, 99.0), (signal.SIGTERM, LATER)], AT_ONCE),
        ([(signal.SIGTERM, 99.0), (signal.SIGTERM, LATER), (signal.SIGTERM, LATER)], AT_ONCE),
        ([(signal.SIGINT, 99.0)], AT_ONCE),
        ([(signal.SIGTERM, 99.0), (signal.SIGINT, 0.1)], AT_ONCE),
        ([(signal.SIGINT, 99.0), (signal.SIGTERM, 0.1)], AT_ONCE),
        ([(signal.SIGINT, 99.0), (signal.SIGINT, 0.1)], HARD),
        ([(signal.SIGTERM, 99.0), (signal.SIGINT, 0.1), (signal.SIGINT, 0.1)], HARD),
    ],
)
def test_urgency(signals: list[tuple[int, float]], expected: Urgency) -> None:
    """SIGTERM drains and a later one hurries; Ctrl-C stops at once, and a second one hard."""
    urgency = NONE
    for number, since_s in signals:
        urgency = urgency_after(urgency, number, since_s)
    assert urgency is expected


def test_signals_are_told_and_given_back() -> None:
    """Each change once, on the way up; afterwards the handlers are those from before."""
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    told: list[Urgency] = []
    with stop_signals(told.append):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
    assert told == [DRAIN, AT_ONCE]
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_is_ignored_stays_so(number: signal.Signals) -> None:
    """It means nothing to who was started with it ignored, as by a shell in the background or by nohup."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        told: list[Urgency] = []
        with stop_signals(told.append):
            os.kill(os.getpid(), number)
            assert told == []
            os.kill(os.getpid(), signal.SIGTERM)
        assert told == [DRAIN]
    finally:
        signal.signal(number, before)


def test_the_end_of_the_terminal_drains() -> None:
    """Whoever has begun others has time to end them."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Who runs these tests may be behind nohup.
    try:
        told: list[Urgency] = []
        with stop_signals(told.append):
            os.kill(os.getpid(), signal.SIGHUP)
        assert told == [DRAIN]
    finally:
        signal.signal(signal.SIGHUP, before)


BEGINNING = """
import pathlib, sys, time
from service.stopping import end_at_once
end_at_once()
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_only_begins_ends_without_a_word(number: int, tmp_path: Path) -> None:
    """Whatever it is doing: no traceback, and a status that says which signal it was."""
    begun = tmp_path / "begun"
    with subprocess.Popen([sys.executable, "-c", BEGINNING, str(begun)], cwd=ROOT, stderr=subprocess.PIPE) as process:
        while not begun.exists():
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(number)
        assert process.communicate(timeout=30)[1] == b""
    assert process.returncode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_begun_is_ended_on_the_way_out(number: signal.Signals) -> None:
    """The blocks of an event loop's tasks are left in order, and the exit status says which signal it was."""
    program = """
import asyncio
from service.stopping import end_in_order

async def task():
    try:
        print("begun", flush=True)
        await asyncio.sleep(60)
    finally:
        await asyncio.shield(asyncio.to_thread(print, "ended"))

end_in_order()
asyncio.run(task())
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert (said, process.returncode) == ("ended\n", 128 + number)
