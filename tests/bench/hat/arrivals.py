"""When requests arrive: by chance at a mean rate, or as a recorded trace had them. Times are seconds from the start."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path


class BadTrace(Exception):
    """A trace of requests that cannot be read, or not be used as asked."""


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """``count`` arrivals of a Poisson process of ``rate`` a second, given that so many come in ``count / rate`` s.

    Under this condition arrivals are as uniform draws are, in order. So few requests already have the rate that is
    written above their figures, while gaps are as irregular as chance makes them. Raises ValueError for a rate that is
    not above 0.
    """
    if not rate > 0:
        raise ValueError(f"the rate of arrivals is {rate} a second; it must be above 0")
    noise = random.Random(seed)
    return sorted(noise.uniform(0.0, count / rate) for _ in range(count))


def of_trace(times: Sequence[float], rate: float, count: int, seed: int) -> list[float]:
    """``count`` successive arrivals of a trace, from where ``seed`` says, stretched to ``rate`` a second on average.

    The gap before the first is the trace's own, so the last arrives after ``count / rate`` seconds.

    Args:
        times: arrivals of the trace, rising, in any unit.

    Raises:
        BadTrace: it is too short, or all of these arrive at once.
        ValueError: the rate is not above 0.
    """
    if not rate > 0:
        raise ValueError(f"the rate of arrivals is {rate} a second; it must be above 0")
    if count < 1 or len(times) < count + 1:
        raise BadTrace(f"the trace has {len(times)} arrivals; {count} gaps between them are asked for")
    begin = random.Random(seed).randrange(len(times) - count)
    window = times[begin : begin + count + 1]
    span = window[-1] - window[0]
    if not span > 0:
        raise BadTrace(f"{count + 1} requests of the trace from number {begin} on arrive at the same time")
    stretch = count / rate / span
    return [(each - window[0]) * stretch for each in window[1:]]


def read_trace(path: Path) -> list[float]:
    """Arrivals of a trace in seconds from its first: Azure's (``.csv``, column TIMESTAMP) or Mooncake's (``.jsonl``).

    Raises BadTrace.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
        if path.suffix == ".jsonl":
            times = [float(json.loads(line)["timestamp"]) / 1e3 for line in lines]
        else:
            at = lines[0].split(",").index("TIMESTAMP")
            times = [_seconds(line.split(",")[at]) for line in lines[1:]]
        first = times[0]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise BadTrace(f"{path} is no trace of requests ({type(error).__name__}: {error})") from error
    if any(b < a for a, b in pairwise(times)):
        raise BadTrace(f"{path}: its times do not rise")
    return [each - first for each in times]


def _seconds(stamp: str) -> float:
    """Of a date and time with seven decimals, which is one more than Python reads."""
    whole, _, decimals = stamp.partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{decimals or 0}")
