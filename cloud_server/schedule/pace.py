"""When the next step begins and how many rows it may hold. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from cloud_server.schedule.budget import Due, step_budget
from cloud_server.schedule.gathering import Gathering
from cloud_server.schedule.monitor import LoadMonitor
from cloud_server.schedule.plan import Budget, Demand

Key = TypeVar("Key", bound=Hashable)

LEAST_WAIT_S = 0.0005
"""Shortest wait for a decoder that is due, so that one who is late is not asked after all the time."""


class StepPace(Generic[Key]):
    """What decides it: who is expected back, and what steps take.

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
        """The next step's budget, or None and in how many seconds to ask again."""
        wait_s = self.gathering.wait_s(now, self.load.eta)
        if wait_s > 0:
            return None, wait_s
        if not self.slack:
            return Budget(self.step_rows, self.step_rows), 0.0
        due = Due(*self.gathering.due(now, self.load.g), self.gathering.away_s)
        budget = step_budget(self.load.g, demand, due, self.slack, self.step_rows)
        return budget, max(due.next_s, LEAST_WAIT_S)
