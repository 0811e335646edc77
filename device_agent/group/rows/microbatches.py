"""The rows of one step at one member, as micro-batches that follow one another through its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agent.group.holding.held import SessionCaches
from device_agent.group.rows.step_rows import GroupStretch, StepRows
from peers.collectives import Collectives
from split_model.rope import Rope


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a step.

    Attributes:
        rows: where they are in the step.
        on: they themselves, numbered from 0.
        sessions: whose they are, by stretch; none of whole texts, of which nothing is kept.
    """

    rows: range
    on: StepRows
    sessions: tuple[SessionCaches, ...]


def cut(
    ranges: Sequence[range],
    stretches: Sequence[GroupStretch],
    sessions: Sequence[SessionCaches],
    collectives: Collectives,
    ranks: tuple[int, ...],
    place: int,
    rope: Rope | None,
    all_see_all: bool,
) -> list[MicroBatch]:
    """A step's rows by ranges, one behind the other; a session's may be in several.

    Args:
        sessions: by stretch, or none.
        all_see_all: see ``StepRows``; then a range has whole texts.
    """
    found = []
    for rows in ranges:
        inside = [(number, part) for number, each in enumerate(stretches) if (part := each.part(rows)) is not None]
        on = StepRows(collectives, ranks, place, tuple(part for _, part in inside), rope, all_see_all)
        found.append(MicroBatch(rows, on, tuple(sessions[number] for number, _ in inside) if sessions else ()))
    return found
