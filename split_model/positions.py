"""What absolute positions are to a model's rows, looked up once a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch

from split_model.device import put
from split_model.new_rows import NewRows, positions_of


class PositionTable(ABC):
    """Something that a model has for each position: one tensor or more, each with a row for each that is asked for."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)

    @abstractmethod
    def span(self, start: int, rows: int) -> tuple[torch.Tensor, ...]:
        """Of the positions `start` to `start + rows`."""

    @abstractmethod
    def positions(self, positions: torch.Tensor, end: int | None = None) -> tuple[torch.Tensor, ...]:
        """Of any positions, int64 [rows], all below `end`: who knows it saves a wait for the device."""

    def of(self, spans: Sequence[NewRows]) -> tuple[torch.Tensor, ...]:
        """Of rows of one session or more, one session's after the other's; each has at least one."""
        first = spans[0]
        if len(spans) == 1 and (first.rows == 1 or first.branching is None):
            return self.span(positions_of(first)[0], first.rows)
        positions = [each for span in spans for each in positions_of(span)]
        return self.positions(put(torch.tensor(positions), self.device), max(positions) + 1)


class PlacedRows(Protocol):
    """The rows of a step, which know where they stand."""

    def look_up(self, table: PositionTable) -> tuple[torch.Tensor, ...]:
        """What the table has for the rows' positions."""
        ...


class LearnedPositions(PositionTable):
    """A row that was learned for each position.

    A position behind the last gets the last one's row: only drafts reach so far, and none of them can be kept.
    """

    def __init__(self, table: torch.Tensor) -> None:
        """table [positions, hidden]."""
        super().__init__(table.device)
        self._table = table

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    def span(self, start: int, rows: int) -> tuple[torch.Tensor]:
        """`rows` [rows, hidden], to be added to what stands there."""
        if start + rows > len(self._table):
            return self.positions(torch.arange(start, start + rows, device=self.device))
        return (self._table.narrow(0, start, rows),)

    def positions(self, positions: torch.Tensor, end: int | None = None) -> tuple[torch.Tensor]:
        """The same for any positions."""
        return (self._table.index_select(0, positions.clamp(max=len(self._table) - 1)),)
