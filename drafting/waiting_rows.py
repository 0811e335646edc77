"""Rows that were observed and not run yet."""

from __future__ import annotations

from collections import deque

import torch

BATCH_ROWS = 512
"""Rows of one batch in which a drafter reads what was observed."""


class WaitingRows:
    """Shallow rows in the order of the text, each with the deep row of the position before it or without one.

    Attributes:
        count: rows that wait.
    """

    def __init__(self) -> None:
        self.count = 0
        # Pieces in which every row has a deep row, or none has.
        self._pieces: deque[tuple[torch.Tensor, torch.Tensor | None]] = deque()

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(shallow.nbytes + (0 if deep is None else deep.nbytes) for shallow, deep in self._pieces)

    def add(self, shallow: torch.Tensor, deep: torch.Tensor | None) -> None:
        """``deep`` belongs to the last of the rows; at most as many."""
        rows = shallow.shape[0]
        known = 0 if deep is None else deep.shape[0]
        if rows > known:
            self._pieces.append((shallow[: rows - known], None))
        if known:
            self._pieces.append((shallow[rows - known :], deep))
        self.count += rows

    def take(self, limit: int) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Takes the first rows out, at most ``limit``."""
        taken = []
        while limit and self._pieces:
            shallow, deep = self._pieces.popleft()
            rows = shallow.shape[0]
            if rows > limit:
                self._pieces.appendleft((shallow[limit:], None if deep is None else deep[limit:]))
                shallow, deep, rows = shallow[:limit], None if deep is None else deep[:limit], limit
            taken.append((shallow, deep))
            limit -= rows
            self.count -= rows
        return taken

    def first(self, count: int) -> WaitingRows:
        """The first ``count`` rows, at most all, as rows that wait elsewhere too."""
        found = WaitingRows()
        found._pieces, found.count = self._pieces.copy(), self.count
        found.truncate(min(count, self.count))
        return found

    def truncate(self, count: int) -> None:
        """Forgets all but the first ``count`` rows."""
        kept = self.take(count)
        self._pieces = deque(kept)
        self.count = count
