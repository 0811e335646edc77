"""The stages of a pipeline: in what order the members' layers follow one another. Pure.

A plain pipeline has one stage a member. In an interleaved one (LIME, IV-A) the rows pass all members several times:
each round is a *segment*, in which each member has a stage, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from device_agent.planning.plan import Layer, Whole

LEAST_ROWS: Final = 16
"""A prompt is not cut into parts of fewer rows: a member reads its weights for each, few rows or many."""


@dataclass(frozen=True)
class Stage:
    """Layers one behind the other at one member."""

    member: int
    layers: range


def stages_of(layers: Sequence[Layer]) -> tuple[Stage, ...]:
    """In the order in which rows pass them. Raises ValueError where a layer is not whole at one member."""
    found, number = [], 0
    for layer, run in groupby(layers):
        if not isinstance(layer, Whole):
            raise ValueError(f"layer {number} is not whole at one member, so it is in no stage")
        count = len(list(run))
        found.append(Stage(layer.member, range(number, number + count)))
        number += count
    return tuple(found)


def segments_of(stages: Sequence[Stage]) -> int:
    """The most stages that any member has: #Seg. 1 is a plain pipeline."""
    return max(Counter(stage.member for stage in stages).values())


def prompt_parts(stages: Sequence[Stage], rows: int) -> int:
    """In how many micro-batches a prompt of so many rows passes: where the members have several stages each, as many as
    there are members, so that all compute; else one."""
    if segments_of(stages) == 1:
        return 1
    return max(min(len({stage.member for stage in stages}), rows // LEAST_ROWS), 1)
