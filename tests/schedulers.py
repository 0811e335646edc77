"""What tests of the scheduler ask it."""

from __future__ import annotations

from typing import Any

from cloud_server.schedule.plan import Budget, Plan
from cloud_server.schedule.scheduler import Scheduler


def whole(rows: int) -> Budget:
    """A budget that chunks may use up, whatever else is in the step."""
    return Budget(rows, rows)


def waits(scheduler: Scheduler[Any], key: object) -> bool:
    """Whether anything of a session, rows or a truncation, is not yet in any step."""
    return key in scheduler._queues


def step_rows(plan: Plan[Any]) -> int:
    """Rows in a step."""
    return sum(portion.rows for portion in plan.portions)
