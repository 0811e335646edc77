"""Where in a ring of bytes the next buffers lie. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Ring:
    """Buffers are taken at one end and freed at the other, in the same order; each is in one piece.

    What does not fit before the ring's end begins at its beginning, and the rest before the end is left out: less than
    one buffer's length. So there is always room for buffers that, with the largest once more, are no longer than it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # Both count on and on; where they are in the ring is the remainder.
        self._head = self._tail = 0
        self._ends: deque[int] = deque()

    def take(self, lengths: Sequence[int]) -> list[int] | None:
        """Where buffers of these lengths begin, which are freed together; None where there is no room for all of them
        now."""
        if not self._ends:
            self._head = self._tail = 0
        head, starts = self._head, []
        for length in lengths:
            if head % self.size + length > self.size:
                head += self.size - head % self.size
            starts.append(head % self.size)
            head += length
        if head - self._tail > self.size:
            return None
        self._head = head
        self._ends.append(head)
        return starts

    def free(self) -> None:
        """The buffers that were taken first, of those not freed yet."""
        self._tail = self._ends.popleft()
