"""What one run of an engine produced and when, and what is read from it: the same for every engine compared."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """``tokens[s]`` are the new tokens of session s, ``times[s]`` when each was known; all sessions began at ``began``.

    Times are seconds of one clock.
    """

    began: float
    times: list[list[float]]
    tokens: list[list[int]]

    @property
    def prefill_s(self) -> float:
        """Until every session has its first token; those that had it sooner have decoded meanwhile."""
        return max(times[0] for times in self.times) - self.began

    @property
    def per_second(self) -> float:
        """New tokens of all sessions a second, prefill included."""
        return sum(map(len, self.tokens)) / (max(times[-1] for times in self.times) - self.began)

    @property
    def decoded_per_second(self) -> float:
        """New tokens a second from when every session has its first."""
        begin = self.began + self.prefill_s
        later = [moment for times in self.times for moment in times if moment > begin]
        return len(later) / (max(later) - begin)


def check(run: Run, sessions: int, new: int) -> Run:
    """The run itself. Raises RuntimeError unless every session got all its tokens."""
    got = sorted({len(tokens) for tokens in run.tokens} | {len(times) for times in run.times})
    if len(run.tokens) != sessions or got != [new]:
        raise RuntimeError(f"{len(run.tokens)} sessions of {got} tokens came back, {sessions} of {new} were asked for")
    return run


def spread(values: Sequence[float], digits: int) -> str:
    """Median with quartiles, for a table."""
    middle = statistics.median(values)
    if len(values) < 2:
        return f"**{middle:.{digits}f}**"
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"**{middle:.{digits}f}** ({low:.{digits}f} … {high:.{digits}f})"
