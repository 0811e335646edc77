"""Shares of the members by what they were measured to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from device_agent.planning.task import Task

SHORTEST_S = 1e-12
"""What takes no time was not measured, or is nothing: it makes nobody infinitely fast."""


def even(task: Task) -> list[float]:
    """To each the same."""
    return [1.0] * len(task.members)


def by_speed(task: Task, members: tuple[str, ...] | None = None) -> list[float]:
    """By the inverse of what each alone takes for a layer with all rows of the prompt (the paper's proportional share).

    members: in whose order; None: in the task's.
    """
    costs, rows = task.costs(members), task.work.rows
    return inverse([costs.layer(number, 0, rows, rows) for number in range(len(members or task.members))])


def inverse(seconds: Sequence[float]) -> list[float]:
    """Speeds of who takes so long."""
    return [1 / max(second, SHORTEST_S) for second in seconds]
