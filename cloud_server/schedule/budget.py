"""When the next step begins and how many rows it may hold, from what steps are known to take. Pure.

A chunk in a step makes every short row in it later. How much later may be said as a factor of the time from answer to
answer: with slack 1.5 the chunks of a step add at most half of it. That time is the step's own and what the link and
the decoder's device take before it: where decoders are far away, a step may be longer by more of its own time before
anyone notices. (One answer may pay twice, for a step that is under way when its rows come and for its own.)

The chunks' work has to be done at some time, and the sooner it is the sooner there are more rows to a step: when few
decode and many wait for their prompts, the factor grows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cloud_server.schedule.gathering import Gathering
from cloud_server.schedule.monitor import LoadMonitor
from cloud_server.schedule.plan import CHUNK_SHARE, Budget, Demand
from cloud_server.schedule.scheduler import MIN_CHUNK_ROWS

Key = TypeVar("Key", bound=Hashable)

LEAST_WAIT_S = 0.0005
"""Shortest wait for a decoder that is due, so that one who is late is not asked after all the time."""

MINORITY = 4
"""Decoders are protected in full while they are this many times those who wait for their prompts."""


@dataclass(frozen=True)
class Due:
    """Decoders that have their answers and are expected back: how many, and in how many seconds the next.

    Attributes:
        away_s: how long a decoder is usually away between an answer and its next rows; of all decoders, back or not,
            the one that is away the shortest.
    """

    sessions: int = 0
    next_s: float = 0.0
    away_s: float = 0.0


class StepPace(Generic[Key]):
    """When the next step begins and how large it is, from who is expected back and from what steps take.

    Args:
        step_rows: most rows in one step.
        slack: how much longer than without prompt chunks a decoder's answer may take, see ``step_budget``; 0: as long
            as it takes, so that chunks are cut by ``step_rows`` alone and nobody is waited for to protect them.
    """

    def __init__(self, step_rows: int, slack: float) -> None:
        self.step_rows = step_rows
        self.slack = slack
        self.gathering = Gathering[Key]()
        self.load = LoadMonitor()

    def next(self, demand: Demand, now: float) -> tuple[Budget | None, float]:
        """Return the next step's budget; or None, and in how many seconds to ask again."""
        wait_s = self.gathering.wait_s(now, self.load.eta)
        if wait_s > 0:
            return None, wait_s
        if not self.slack:
            return Budget(self.step_rows, self.step_rows), 0.0
        due = Due(*self.gathering.due(now, self.load.g), self.gathering.away_s)
        budget = step_budget(self.load.g, demand, due, self.slack, self.step_rows)
        return budget, max(due.next_s, LEAST_WAIT_S)


def step_budget(
    predict: Callable[[int], float], demand: Demand, due: Due, slack: float, max_rows: int
) -> Budget | None:
    """Return the next step's budget; None where it is better to wait for the decoders that are due than to begin now.

    Args:
        predict: seconds that a step of so many rows takes, monotone (the paper's g, Eq. 1 and 2).
        demand: what could run in the step.
        due: who is expected back meanwhile; they are held up by a step of chunks alone.
        slack: how many times longer than without chunks an answer may take, from the one before it, while those who
            decode are the many.
        max_rows: most rows of any step.
    """
    if demand.chunk_sessions == 0:
        return Budget(max_rows, max_rows)
    if demand.short_rows == 0:
        if due.sessions == 0:
            return Budget(max_rows, max_rows)
        more = _excess(slack, demand.chunk_sessions, due.sessions)
        allowed = due.next_s + more * (due.away_s + predict(due.sessions))
        rows = _most(predict, 0, max_rows, allowed)
        return Budget(rows, rows) if rows >= MIN_CHUNK_ROWS else None
    # More short work than this leaves chunks their share all the same, so it is not all in this step.
    short = min(demand.short_rows, max_rows - max_rows // CHUNK_SHARE)
    more = _excess(slack, demand.chunk_sessions, demand.short_sessions)
    allowed = predict(short) + more * (due.away_s + predict(short))
    fits = _most(predict, short, max_rows, allowed) - short
    return Budget(max_rows, min(max(fits, MIN_CHUNK_ROWS), max_rows - short))


def _excess(slack: float, prompts: int, decoders: int) -> float:
    """What the slack is above one where ``prompts`` wait and ``decoders`` decode: it grows with the square of their
    ratio, for so many more are helped and so many fewer are held up."""
    return (slack - 1) * max(1.0, MINORITY * prompts / decoders) ** 2


def _most(predict: Callable[[int], float], least: int, most: int, allowed: float) -> int:
    """The most rows, ``least`` to ``most``, of a step that takes at most ``allowed`` seconds; else ``least``."""
    while least < most:
        middle = (least + most + 1) // 2
        if predict(middle) <= allowed:
            least = middle
        else:
            most = middle - 1
    return least
