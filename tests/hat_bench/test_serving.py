"""What the cloud counted is read as it says it, and cells that need the same processes are told to."""

from __future__ import annotations

import statistics
from dataclasses import fields, replace

import pytest
from bench.hat.serving import Counted, Processes
from hypothesis import given
from hypothesis import strategies as st

from cloud_server.metrics import CloudMetrics

steps = st.lists(st.tuples(st.floats(1e-4, 10.0), st.integers(1, 2048)), min_size=1, max_size=30)


def counted(*ran: list[tuple[float, int]], up_bytes: int = 0, down_bytes: int = 0) -> Counted:
    """What a real cloud's metrics say after steps of these times and rows."""
    metrics = CloudMetrics()
    for seconds, rows in [each for some in ran for each in some]:
        metrics.step_seconds.observe(seconds)
        metrics.step_seconds_squares.inc(seconds**2)
        metrics.step_rows.observe(rows)
    metrics.received_bytes.inc(up_bytes)
    metrics.sent_bytes.inc(down_bytes)
    return Counted.read(metrics.text().decode())


@given(steps)
def test_mean_and_deviation_are_those_of_the_steps(ran: list[tuple[float, int]]) -> None:
    """From the metrics' sums alone."""
    found = counted(ran, up_bytes=3, down_bytes=7).as_dict()
    times = [seconds for seconds, _ in ran]
    assert found["steps"] == len(ran)
    assert found["step_mean_s"] == pytest.approx(statistics.fmean(times))
    assert found["step_std_s"] == pytest.approx(statistics.pstdev(times), rel=1e-3, abs=1e-5 * max(times))
    assert found["rows_mean"] == pytest.approx(statistics.fmean(rows for _, rows in ran))
    assert (found["up_bytes"], found["down_bytes"]) == (3, 7)


@given(steps, steps)
def test_what_came_since_is_what_came_between(before: list[tuple[float, int]], after: list[tuple[float, int]]) -> None:
    """Of a cloud that counts on."""
    found = counted(before, after, up_bytes=12, down_bytes=5).since(counted(before, up_bytes=2, down_bytes=1))
    wanted = counted(after, up_bytes=10, down_bytes=4)
    for field in fields(Counted):
        assert getattr(found, field.name) == pytest.approx(getattr(wanted, field.name), abs=1e-6), field.name


def test_a_cloud_that_did_nothing() -> None:
    """Has no mean step; nor has one that is asked for what it never counts."""
    assert counted().as_dict() == dict.fromkeys(counted().as_dict(), 0.0)
    assert Counted.read("") == counted()


def test_processes_are_the_same_by_what_they_are() -> None:
    """Cells are grouped by them, so they are equal and hash alike where every field is, and only there."""
    one = Processes(("--mode", "hat"), ("--step-rows", "128"))
    assert one == Processes(("--mode", "hat"), ("--step-rows", "128")) and len({one, replace(one)}) == 1
    others = (
        replace(one, device=("--mode", "ushape")),
        replace(one, cloud=()),
        replace(one, stages=2),
        replace(one, relayed=True),
        replace(one, sends_text=True),
    )
    assert len({one, *others}) == len(fields(Processes)) + 1
