"""The rows that a session has elsewhere, kept to rebuild it where they are lost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import torch

from split_model.tensor_bytes import joined

WHOLE_ROWS = 16
"""Rows from which on a piece of history stays as it came."""

GATHERED = 64
"""Smaller pieces are joined once so many follow each other: a tensor for each would cost more than its row."""


class History:
    """Rows ``[length, hidden_size]`` as a list of pieces. Nobody writes to them, so that histories may share them."""

    def __init__(self) -> None:
        self.length = 0
        self._pieces: list[torch.Tensor] = []
        self._begins: list[int] = []
        self._few = 0
        """Small pieces at the end, which are to be gathered."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(piece.untyped_storage().nbytes() for piece in self._pieces)

    def append(self, rows: torch.Tensor) -> None:
        """Add rows ``[count, hidden_size]`` at the end."""
        self._pieces.append(rows)
        self._begins.append(self.length)
        self.length += rows.shape[0]
        self._few = self._few + 1 if rows.shape[0] < WHOLE_ROWS else 0
        if self._few == GATHERED:
            begin, self._few = self._begins[-GATHERED], 0
            self._pieces[-GATHERED:] = [self.rows(begin, self.length)]
            self._begins[-GATHERED:] = [begin]

    def truncate(self, position: int) -> None:
        """Forget the rows from ``position`` on."""
        assert 0 <= position <= self.length, (position, self.length)
        left = bisect_left(self._begins, position)
        self._few = max(0, self._few - (len(self._begins) - left))
        del self._pieces[left:], self._begins[left:]
        self.length = position

    def fork(self, position: int) -> History:
        """Another history of the first ``position`` rows, which are the same memory."""
        assert 0 <= position <= self.length, (position, self.length)
        forked, shared = History(), bisect_left(self._begins, position)
        forked._pieces, forked._begins = self._pieces[:shared], self._begins[:shared]
        forked.length = position
        return forked

    def rows(self, begin: int, end: int) -> torch.Tensor:
        """Rows ``begin`` to ``end``, at least one: a view where one piece holds them."""
        assert 0 <= begin < end <= self.length, (begin, end, self.length)
        found = []
        for index in range(bisect_right(self._begins, begin) - 1, bisect_left(self._begins, end)):
            first = self._begins[index]
            last = self._begins[index + 1] if index + 1 < len(self._begins) else self.length
            found.append(self._pieces[index][max(0, begin - first) : min(end, last) - first])
        return joined(found)
