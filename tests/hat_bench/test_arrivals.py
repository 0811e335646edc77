"""Arrivals have the rate that was asked for, and the irregularity of where they are from."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from bench.hat.arrivals import BadTrace, of_trace, poisson, read_trace
from checkpoints import DATA
from hypothesis import given
from hypothesis import strategies as st

RATES = st.floats(0.01, 100)


@given(rate=RATES, count=st.integers(0, 100), seed=st.integers())
def test_poisson(rate: float, count: int, seed: int) -> None:
    """In order, within the time that gives the rate, and the same for the same seed."""
    times = poisson(rate, count, seed)
    assert len(times) == count and times == sorted(times) and times == poisson(rate, count, seed)
    assert all(0 <= each <= count / rate * (1 + 1e-9) for each in times)


def test_gaps_are_exponential() -> None:
    """Their deviation is their mean, and as many as should be are short: evenly spaced requests would fail both."""
    gaps = [b - a for a, b in pairwise(poisson(4.0, 20_000, 3))]
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.01)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.03)
    assert sum(each < 0.05 for each in gaps) / len(gaps) == pytest.approx(1 - 2.718281828**-0.2, abs=0.01)


@given(
    steps=st.lists(st.floats(0.001, 1000), min_size=3, max_size=60),
    rate=RATES,
    seed=st.integers(),
    data=st.data(),
)
def test_a_trace_is_stretched(steps: list[float], rate: float, seed: int, data: st.DataObject) -> None:
    """A window of it has the rate, and its gaps the proportions they had."""
    times = [sum(steps[:at]) for at in range(len(steps) + 1)]
    count = data.draw(st.integers(1, len(steps)))
    found = of_trace(times, rate, count, seed)
    assert found[-1] == pytest.approx(count / rate) and found == sorted(found)
    gaps = [b - a for a, b in pairwise([0.0, *found])]
    windows = [steps[at : at + count] for at in range(len(steps) - count + 1)]
    wanted = [[each * count / rate / sum(window) for each in window] for window in windows]
    assert any(gaps == pytest.approx(each, rel=1e-3, abs=1e-9) for each in wanted)


def test_what_cannot_be_stretched() -> None:
    """Too few arrivals, all at once, or a rate of nothing."""
    with pytest.raises(BadTrace, match="3 arrivals"):
        of_trace([0.0, 1.0, 2.0], 1.0, 3, 0)
    with pytest.raises(BadTrace, match="same time"):
        of_trace([5.0] * 4, 1.0, 3, 0)
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="rate"):
            poisson(rate, 3, 0)
        with pytest.raises(ValueError, match="rate"):
            of_trace([0.0, 1.0, 2.0, 3.0], rate, 3, 0)


def test_formats(tmp_path: Path) -> None:
    """Azure's seven decimals, across midnight, and Mooncake's milliseconds."""
    azure, mooncake = tmp_path / "azure.csv", tmp_path / "mooncake.jsonl"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 23:59:59.5000001,374,44\n2023-11-17 00:00:01.0000001,396,109\n2023-11-17 00:00:02,1,1\n"
    )
    mooncake.write_text("".join(json.dumps({"timestamp": each, "input_length": 1}) + "\n" for each in (40, 40, 1540)))
    assert read_trace(azure) == pytest.approx([0.0, 1.5, 2.5], abs=1e-5)
    assert read_trace(mooncake) == pytest.approx([0.0, 0.0, 1.5])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty.csv", ""),
        ("headed.csv", "TIMESTAMP,ContextTokens\n"),
        ("other.csv", "time_s,down_mbps\n0,1\n"),
        ("words.csv", "TIMESTAMP\nyesterday\n"),
        ("short.csv", "ContextTokens,TIMESTAMP\n12\n"),
        ("falls.csv", "TIMESTAMP\n2023-11-17 00:00:01\n2023-11-17 00:00:00\n"),
        ("other.jsonl", '{"arrival_s": 1}\n'),
        ("list.jsonl", "[1]\n"),
        ("broken.jsonl", "{"),
    ],
)
def test_what_is_no_trace(name: str, text: str, tmp_path: Path) -> None:
    """An error that names the file."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadTrace, match=name):
        read_trace(path)
    with pytest.raises(BadTrace, match="missing"):
        read_trace(tmp_path / "missing.csv")


def test_the_recorded_traces() -> None:
    """They can be read, and a window of one is as irregular as chance at the rate that is asked for."""
    path = DATA / "traces_requests" / "azure_llm_2023_conv.csv"
    if not path.exists():
        pytest.skip("the recorded traces are not at hand: measured data is kept apart from the product")
    times = read_trace(path)
    assert len(times) > 9000
    found = of_trace(times, 6.0, 2000, 0)
    gaps = [b - a for a, b in pairwise(found)]
    assert found[-1] == pytest.approx(2000 / 6) and statistics.pstdev(gaps) > 0.8 * statistics.fmean(gaps)
    assert len(read_trace(path.with_name("mooncake_conversation.jsonl"))) > 6000
