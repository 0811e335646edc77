"""A submodel that offers what all owe and nothing else: its rows cannot branch."""

from __future__ import annotations

from collections.abc import Awaitable

import torch

from split_model.submodel import Submodel, SubmodelSession


class LineSubmodel:
    """Another submodel, as far as all owe it."""

    hints = None
    reading = None

    def __init__(self, behind: Submodel) -> None:
        self._behind = behind
        self.connected = behind.connected
        self.max_rows, self.max_positions = behind.max_rows, behind.max_positions

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> LineSession:
        """Begin a session."""
        return LineSession(self._behind.open(positions, prompt, expected))


class LineSession:
    """A session of one."""

    branching = None
    hints = None

    def __init__(self, behind: SubmodelSession) -> None:
        self._behind = behind
        self.expect, self.truncate = behind.expect, behind.truncate
        self.park, self.close = behind.park, behind.close

    @property
    def position(self) -> int:
        """Where the next row goes."""
        return self._behind.position

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._behind.nbytes

    def forward(self, hidden: torch.Tensor, want: int) -> Awaitable[torch.Tensor]:
        """New positions."""
        return self._behind.forward(hidden, want)

    def fork(self, position: int) -> LineSession:
        """Go on from there."""
        return LineSession(self._behind.fork(position))
