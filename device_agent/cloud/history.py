"""The rows that a session has in the cloud: what rebuilds it elsewhere when that cloud server is gone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import torch

from device_agent.cloud.row_bytes import joined

BLOCK_ROWS = 64
"""Rows of one block, in which single rows are gathered: a tensor for each would cost more than its row."""

WHOLE_ROWS = 16
"""Pieces of at least as many rows are kept as they came, without a copy."""


class History:
    """Rows ``[length, hidden_size]`` as a list of pieces. Nobody may write to rows that were given to it."""

    def __init__(self) -> None:
        self.length = 0
        self._pieces: list[torch.Tensor] = []
        self._begins: list[int] = []
        self._blocks: list[bool] = []
        """Which pieces are blocks; the others are somebody's tensors, never written to."""
        self._room = 0
        """Rows that still fit in the last piece, where that is a block."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(piece.untyped_storage().nbytes() for piece in self._pieces)

    def append(self, rows: torch.Tensor) -> None:
        """Add rows ``[count, hidden_size]`` at the end: few are copied, many are kept as they are."""
        count = rows.shape[0]
        if count > self._room:
            self._begins.append(self.length)
            self._blocks.append(count < WHOLE_ROWS)
            if count >= WHOLE_ROWS:
                self._pieces.append(rows)
                self._room = 0
                self.length += count
                return
            self._pieces.append(rows.new_empty((BLOCK_ROWS, rows.shape[1])))
            self._room = BLOCK_ROWS
        self._pieces[-1].narrow(0, self.length - self._begins[-1], count).copy_(rows)
        self._room -= count
        self.length += count

    def truncate(self, position: int) -> None:
        """Forget the rows from ``position`` on."""
        assert 0 <= position <= self.length, (position, self.length)
        while self._begins and self._begins[-1] >= position:
            self._pieces.pop()
            self._begins.pop()
            self._blocks.pop()
        self._room = BLOCK_ROWS - (position - self._begins[-1]) if self._blocks and self._blocks[-1] else 0
        self.length = position

    def fork(self, position: int) -> History:
        """Another history of the first ``position`` rows. They are the same memory, so neither writes to it any more:
        what follows in either begins a block of its own."""
        assert 0 <= position <= self.length, (position, self.length)
        forked = History()
        shared = bisect_left(self._begins, position)
        self._blocks[:shared] = [False] * shared
        if shared == len(self._pieces):
            self._room = 0
        forked._pieces, forked._begins = self._pieces[:shared], self._begins[:shared]
        forked._blocks, forked.length = [False] * shared, position
        return forked

    def rows(self, begin: int, end: int) -> torch.Tensor:
        """Rows ``begin`` to ``end``, at least one: a view where one piece holds them. Good until the next change."""
        assert 0 <= begin < end <= self.length, (begin, end, self.length)
        found = []
        for index in range(bisect_right(self._begins, begin) - 1, len(self._pieces)):
            first = self._begins[index]
            if first >= end:
                break
            last = self._begins[index + 1] if index + 1 < len(self._begins) else self.length
            found.append(self._pieces[index][max(0, begin - first) : min(end, last) - first])
        return joined(found)
