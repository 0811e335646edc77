"""Bandwidth over time, measured somewhere and played back: CSV files of ``time_s,down_mbps[,up_mbps][,rtt_ms]``.

Time steps are irregular; a row holds until the next. What is behind the last row is as long as the step before it.
Round trips in a trace are not played back.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

MOST_BYTES = 16 << 20
MB_S_OF_MBPS = 0.125
LEAST_S = 1e-6
"""A shorter step is none."""


class BadTrace(ValueError):
    """A file is no trace; the message says which and where."""


@dataclass(frozen=True)
class Trace:
    """Bandwidths of a link; it begins again when it is over.

    Attributes:
        begins: when each step begins, in seconds; the first is 0, and each is later than the one before.
        down, up: of each step, in MB/s (10^6 bytes); ``up`` is None where it was not measured.
        length_s: of all steps.
    """

    begins: tuple[float, ...]
    down: tuple[float, ...]
    up: tuple[float, ...] | None
    length_s: float

    def step(self, at_s: float) -> int:
        """The step that holds at a time, counted on through every repetition."""
        rounds, within_s = divmod(at_s, self.length_s)
        step = int(rounds) * len(self.begins) + bisect_right(self.begins, within_s) - 1
        return step + 1 if self.begin(step + 1) <= at_s else step  # What is left of a quotient may be rounded down.

    def begin(self, step: int) -> float:
        """When a step, so counted, begins."""
        rounds, index = divmod(step, len(self.begins))
        return rounds * self.length_s + self.begins[index]

    def begun_at(self, from_s: float) -> Trace:
        """The same, begun so far into it: what was before that comes last."""
        from_s %= self.length_s
        first = bisect_right(self.begins, from_s) - 1
        order = [*range(first, len(self.begins)), *range(first)]
        begins = [max(0.0, self.begins[index] - from_s + (self.length_s if index < first else 0.0)) for index in order]
        if from_s - self.begins[first] > LEAST_S:  # The step it begins in is played from there on, and ends the round.
            order.append(first)
            begins.append(self.begins[first] - from_s + self.length_s)
        up = None if self.up is None else tuple(self.up[index] for index in order)
        return Trace(tuple(begins), tuple(self.down[index] for index in order), up, self.length_s)

    def means(self, length_s: float) -> tuple[float, float | None]:
        """Of ``down`` and of ``up``, over the first ``length_s`` that are played."""
        steps = range(self.step(length_s) + 1)
        shares = [(min(length_s, self.begin(step + 1)) - self.begin(step)) / length_s for step in steps]

        def mean(rates: tuple[float, ...]) -> float:
            return sum(rates[step % len(rates)] * share for step, share in zip(steps, shares, strict=True))

        return mean(self.down), None if self.up is None else mean(self.up)

    def coarser(self, step_s: float) -> Trace:
        """The same bytes in steps of at least ``step_s``, but for the last: short ones become one of their mean."""
        kept = [0]
        for index, begin in enumerate(self.begins):
            if begin - self.begins[kept[-1]] >= step_s - 1e-9:
                kept.append(index)
        ends = [*self.begins[1:], self.length_s]

        def means(rates: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(
                sum(rates[i] * (ends[i] - self.begins[i]) for i in range(first, end))
                / (ends[end - 1] - self.begins[first])
                for first, end in pairwise([*kept, len(rates)])
            )

        up = None if self.up is None else means(self.up)
        return Trace(tuple(self.begins[index] for index in kept), means(self.down), up, self.length_s)


def read_trace(path: Path) -> Trace:
    """Read a CSV trace.

    Raises:
        BadTrace: a column or a row is missing, a value is no number, or times fall.
        OSError: it cannot be read.
    """
    if path.stat().st_size > MOST_BYTES:
        raise BadTrace(f"{path}: more than {MOST_BYTES} bytes")
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except (ValueError, csv.Error) as error:
        raise BadTrace(f"{path}: is not CSV: {error}") from None
    if len(rows) < 2 or not {"time_s", "down_mbps"} <= rows[0].keys():
        raise BadTrace(f"{path}: needs columns time_s and down_mbps, and two rows")
    times = _column(path, rows, "time_s")
    if any(later < earlier for earlier, later in pairwise(times)) or times[0] == times[-1]:
        raise BadTrace(f"{path}: times do not rise")
    held = [index for index, (earlier, later) in enumerate(pairwise(times)) if later > earlier] + [len(times) - 1]
    down = _rates(path, rows, "down_mbps", held)
    up = _rates(path, rows, "up_mbps", held) if "up_mbps" in rows[0] else None
    begins = tuple(times[index] - times[0] for index in held)
    return Trace(begins, down, up, 2 * begins[-1] - begins[-2])


def _rates(path: Path, rows: Sequence[dict[str, str]], name: str, held: Sequence[int]) -> tuple[float, ...]:
    """In MB/s, of those rows that hold for any time."""
    values = _column(path, rows, name)
    return tuple(values[index] * MB_S_OF_MBPS for index in held)


def _column(path: Path, rows: Sequence[dict[str, str]], name: str) -> list[float]:
    values = []
    for line, row in enumerate(rows, 2):
        try:
            value = float(row[name])
        except (TypeError, ValueError):
            value = -1.0
        if not (math.isfinite(value) and value >= 0):
            raise BadTrace(f"{path}:{line}: {name} is not a number of at least 0: {row[name]!r}")
        values.append(value)
    return values
