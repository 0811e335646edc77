"""Where the time of an answer went, as gateways are told. Pure."""

from __future__ import annotations

from split_model.hints import TimeSpent, TurnSpent
from wire.request_messages import Spent, Timings


def timings_of(spent: TurnSpent | None, rounds: int) -> Timings | None:
    """What is told; nothing where no cloud took part. A round may be sent, and answered, row by row."""
    return None if spent is None else Timings(cut(spent.prompt), cut(spent.decode), rounds)


def cut(spent: TimeSpent) -> Spent:
    """In microseconds, cut and not rounded: the four never come to more than there was."""
    return Spent(*(int(each * 1e6) for each in (spent.device_s, spent.link_s, spent.queue_s, spent.step_s)))
