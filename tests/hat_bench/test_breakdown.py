"""Where the time went, from the timings that servers told."""

from __future__ import annotations

import msgspec
import pytest
from bench.hat.breakdown import breakdown
from bench.hat.latency import Record, RoundsSpent, TimeSpent, Timings

FIRST = Timings(TimeSpent(10, 40, 1, 20), RoundsSpent(30, 60, 3, 12, 2))
SECOND = Timings(TimeSpent(30, 80, 3, 40), RoundsSpent(10, 20, 1, 4, 1))


def answered(tokens: int, timings: Timings | None) -> Record:
    """A request that was."""
    return Record(1, 0.0, 0.0, 0.5, [(0.5, 1), (0.9, tokens - 1)], tokens=tokens, finish="length", timings=timings)


def test_means_of_requests() -> None:
    """Prompts as they are, rounds by the tokens behind the first; failed and untimed requests count for nothing."""
    failed = Record(3, 0.0, 0.0, error="deadline", timings=FIRST)
    found = breakdown([answered(4, FIRST), answered(2, SECOND), answered(9, None), failed])["breakdown"]
    assert found["prompt"] == pytest.approx({"device_s": 0.02, "link_s": 0.06, "queue_s": 0.002, "step_s": 0.03})
    decode = {"device_s": 0.01, "link_s": 0.02, "queue_s": 0.001, "step_s": 0.004, "rounds": (2 / 3 + 1) / 2}
    assert found["decode"] == pytest.approx(decode)


def test_a_single_token_has_no_rounds() -> None:
    """It is in the means of prompts, and in no other; alone it leaves them out."""
    nothing = msgspec.structs.replace(FIRST, decode=RoundsSpent(0, 0, 0, 0, 0))
    found = breakdown([answered(1, nothing), answered(2, SECOND)])["breakdown"]
    assert found["prompt"]["device_s"] == pytest.approx(0.02) and found["decode"]["device_s"] == pytest.approx(0.01)
    assert breakdown([answered(1, nothing)])["breakdown"].keys() == {"prompt"}


def test_without_timings_there_is_none() -> None:
    """Nor in a cell in which all failed."""
    assert breakdown([answered(4, None)]) == breakdown([]) == {}
