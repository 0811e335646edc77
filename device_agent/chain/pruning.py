"""Prompts that are read without some heads, so that they are read within a time, where that was allowed.

Lossy: the sets are chosen before a request's first row and hold for its whole answer, since a head that is pruned in
the prompt has no keys and values for later rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from device_agent.group.asking.submodel import Placing
from split_model.pruning.kept import HeadSets, count_pruned
from split_model.stack import Stack


@dataclass(frozen=True)
class PrunedLayers:
    """What a session's layers are instead of the whole ones.

    Attributes:
        sets: of all layers of the model.
        front, middle, back: in the place of the input submodel's, the middle's where that is here, and the output
            submodel's.
        rest: of the layers that a group computes, where one does; () else.
        placing: who of the group computes these; None: who has them.
    """

    sets: HeadSets
    front: Stack
    middle: Stack | None
    back: Stack
    rest: HeadSets = ()
    placing: Placing | None = None

    @property
    def count(self) -> int:
        """Heads left out, all layers together."""
        return count_pruned(self.sets)


class Pruner(Protocol):
    """Chooses heads for prompts, and has the layers without the others. For the compute thread, but for ``needs``."""

    def needs(self, rows: int) -> bool:
        """Whether so many rows of a prompt take longer than the limit with all heads."""

    def prune(self, ids: Sequence[int], tenant: str) -> PrunedLayers:
        """The layers for a prompt that ``needs`` it. Raises LimitTooShort, NoRoomForSets."""

    def tidy(self) -> None:
        """What can be done when there is time."""
