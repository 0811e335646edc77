"""Traces are read as they are written, played over and over, and refused where they are none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from bench.testbed.traces import BadTrace, Trace, read_trace
from checkpoints import DATA
from hypothesis import given
from hypothesis import strategies as st

REAL = DATA / "traces_network"

STEPS = st.lists(st.tuples(st.floats(0.01, 10.0), st.floats(0.0, 100.0)), min_size=2, max_size=30)


def trace_of(steps: list[tuple[float, float]]) -> Trace:
    """A trace of (seconds, MB/s) steps."""
    ends = [sum(length for length, _ in steps[: count + 1]) for count in range(len(steps))]
    return Trace((0.0, *ends[:-1]), tuple(rate for _, rate in steps), None, ends[-1])


def written(folder: Path, text: str) -> Path:
    """A file."""
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_a_row_holds_until_the_next_and_the_first_follows_the_last(tmp_path: Path) -> None:
    """Megabits become megabytes; times count from the first row; the last row is as long as the one before it."""
    trace = read_trace(written(tmp_path, "time_s,down_mbps,up_mbps,rtt_ms\n10,8,4,\n11,16,0,30\n14,0.8,2,\n"))
    assert trace == Trace((0.0, 1.0, 4.0), (1.0, 2.0, 0.1), (0.5, 0.0, 0.25), 7.0)
    assert [trace.step(at_s) for at_s in (0.0, 0.9, 1.0, 3.9, 4.0, 6.9, 7.0, 8.5, 14.0)] == [0, 0, 1, 1, 2, 2, 3, 4, 6]
    assert [trace.begin(step) for step in range(7)] == [0.0, 1.0, 4.0, 7.0, 8.0, 11.0, 14.0]
    assert read_trace(written(tmp_path, "time_s,down_mbps\n0,8\n1,8\n")).up is None


def test_a_row_that_holds_for_no_time_is_left_out(tmp_path: Path) -> None:
    """Of two at one time, the later holds."""
    trace = read_trace(written(tmp_path, "time_s,down_mbps\n0,8\n1,16\n1,24\n3,8\n"))
    assert trace == Trace((0.0, 1.0, 3.0), (1.0, 3.0, 1.0), None, 5.0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "needs columns"),
        ("time_s,rtt_ms\n0,1\n1,1\n", "needs columns"),
        ("time_s,down_mbps\n0,1\n", "two rows"),
        ("time_s,down_mbps\n0,1\n1,fast\n", ":3: down_mbps is not a number"),
        ("time_s,down_mbps\n0,1\n1\n", ":3: down_mbps is not a number"),
        ("time_s,down_mbps\n0,1\n1,-1\n", ":3: down_mbps is not a number"),
        ("time_s,down_mbps\n0,nan\n1,1\n", ":2: down_mbps is not a number"),
        ("time_s,down_mbps,up_mbps\n0,1,\n1,1,1\n", ":2: up_mbps is not a number"),
        ("time_s,down_mbps\n0,1\n0,1\n", "do not rise"),
        ("time_s,down_mbps\n0,1\n2,1\n1,1\n", "do not rise"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, what: str) -> None:
    """With the file, and the line where it is one."""
    with pytest.raises(BadTrace, match=what) as caught:
        read_trace(written(tmp_path, text))
    assert "trace.csv" in str(caught.value)


def test_bytes_that_are_no_text_are_no_trace(tmp_path: Path) -> None:
    """As little as text that is no table."""
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadTrace, match="is not CSV"):
        read_trace(path)


@given(STEPS, st.floats(0.1, 5.0))
def test_a_coarser_trace_carries_the_same_bytes(steps: list[tuple[float, float]], step_s: float) -> None:
    """In as much time, in no step but the last shorter than it should be, and in no more steps."""
    fine = trace_of(steps)
    coarse = fine.coarser(step_s)
    ends = [*coarse.begins[1:], coarse.length_s]
    lengths = [end - begin for begin, end in zip(coarse.begins, ends, strict=True)]
    carried = sum(rate * length for rate, length in zip(coarse.down, lengths, strict=True))
    assert carried == pytest.approx(sum(rate * length for length, rate in steps), rel=1e-6, abs=1e-6)
    assert coarse.length_s == fine.length_s and set(coarse.begins) <= set(fine.begins)
    assert all(length >= step_s - 1e-6 for length in lengths[:-1])
    assert min(fine.down) - 1e-9 <= min(coarse.down) and max(coarse.down) <= max(fine.down) + 1e-9


@given(STEPS, st.floats(0.0, 500.0), st.floats(0.0, 1.0))
def test_a_trace_that_is_begun_later_is_the_same_later(
    steps: list[tuple[float, float]], from_s: float, share: float
) -> None:
    """Each moment of it is what that moment is so much later in the other, and a round carries the same bytes."""
    trace = trace_of(steps)
    later = trace.begun_at(from_s)
    assert later.begins[0] == 0.0 and all(one < other for one, other in pairwise((*later.begins, later.length_s)))
    at_s = share * trace.length_s
    moments = [from_s + at_s + slip for slip in (-2e-6, 0.0, 2e-6) if from_s + at_s + slip >= 0]
    near = {trace.down[trace.step(moment) % len(trace.down)] for moment in moments}
    assert later.down[later.step(at_s) % len(later.down)] in near
    assert later.means(later.length_s)[0] == pytest.approx(trace.means(trace.length_s)[0], rel=1e-3, abs=1e-3)


def test_means_are_over_time() -> None:
    """Of each way, of the part that is played, also where that is longer than the trace or ends within a step."""
    trace = Trace((0.0, 1.0), (1.0, 2.0), (0.0, 4.0), 4.0)
    assert trace.means(1.0) == (1.0, 0.0)
    assert trace.means(2.0) == (1.5, 2.0)
    assert trace.means(5.0) == pytest.approx((8 / 5, 12 / 5))
    assert Trace((0.0, 1.0), (1.0, 2.0), None, 4.0).means(4.0) == (1.75, None)


def test_real_traces_are_read() -> None:
    """Every one that has a bandwidth, with its uplink where there is one; those of round trips alone are refused."""
    if not REAL.is_dir():
        pytest.skip(f"no traces at {REAL}")
    files = sorted(REAL.glob("*/*.csv"))
    assert files
    for path in files:
        header = path.read_text().splitlines()[0]
        if "down_mbps" not in header:
            with pytest.raises(BadTrace, match="needs columns"):
                read_trace(path)
            continue
        trace = read_trace(path)
        assert (trace.up is not None) == ("up_mbps" in header) and trace.length_s > 1.0 and max(trace.down) > 0.0
        assert len(trace.coarser(0.5).begins) <= trace.length_s / 0.5 + 1
