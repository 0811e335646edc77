"""What rows of a step see, with what relative positions add to their scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from split_model.attention import Sight, sight
from split_model.checkpoint import Checkpoint
from split_model.positions import PositionTable
from split_model.relative import RelativeBias


class GroupRows:
    """Where consecutive rows of a session stand, as tables of positions and relative positions ask for it."""

    branching = None

    def __init__(self, start: int, rows: int) -> None:
        self.start, self.rows = start, rows

    def look_up(self, table: PositionTable) -> tuple[torch.Tensor, ...]:
        """See ``PlacedRows``."""
        return table.span(self.start, self.rows)


@dataclass(frozen=True)
class PieceBias:
    """What relative positions add to the scores of some heads.

    Attributes:
        groups: whose heads they are; in all layers of an encoder, or of a decoder, the same is added for them.
    """

    groups: range
    table: RelativeBias

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, groups: range, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> PieceBias | None:
        """None for a model that has none. Raises ``BadCheckpoint``."""
        table = RelativeBias.load(checkpoint, groups, dtype, device)
        return None if table is None else cls(groups, table)


def sight_of_all(first: int, rows: int, length: int, bias: PieceBias | None) -> Sight:
    """Of rows ``first`` to ``first + rows`` of a text of ``length`` rows that all see one another."""
    if bias is None:
        return Sight(0, length, None, causal=False)
    added = bias.table.between(torch.arange(first, first + rows), torch.arange(length))
    return Sight(0, length, added.unsqueeze(1), causal=False)


def sight_of_new(first: int, rows: int, window: int | None, like: torch.Tensor, bias: PieceBias | None) -> Sight:
    """Of rows at positions ``first`` to ``first + rows`` that see what is before them, for queries like these."""
    if bias is None:
        return sight(first, rows, window, like.dtype, like.device)
    return bias.table.sight(GroupRows(first, rows))
