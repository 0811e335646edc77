"""How a prompt is cut into chunks. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from wire.limits import LEAST_CHUNK

DEFAULT_CHUNK = 128
"""Most tokens in a chunk before the cloud has advised anything."""

GROWTH = 3
"""A later one has at most this many times the rows before it: it is computed while those are on their way."""


def chunk_sizes(tokens: int, chunk: int) -> list[int]:
    """Sizes that add up to ``tokens``: as few chunks as ``chunk`` allows, all within one token of each other.

    Even chunks keep upload and computing of neighbours equally long; a last chunk of three tokens would cost a whole
    step in the cloud and hide nothing.
    """
    if tokens <= 0:
        return []
    count = -(-tokens // chunk)
    size, larger = divmod(tokens, count)
    return [size + 1] * larger + [size] * (count - larger)


class Chunker:
    """Cuts one prefill chunk by chunk, so that advice from the cloud takes effect from the next chunk on.

    Args:
        rows: rows of this prefill.
        default: rows of a chunk where no advice says otherwise.
        limit: rows no chunk may exceed, whatever is advised.
        first: most rows of the first chunk, from which they grow by ``GROWTH`` at most; None: they have their sizes
            from the first on.
    """

    def __init__(self, rows: int, default: int, limit: int, first: int | None = None) -> None:
        assert limit > 0 and default > 0
        self._rows = rows
        self._default = min(default, limit)
        self._limit = limit
        self._cut = 0
        self._first = first
        self._advised = False
        self._sizes = deque(chunk_sizes(rows, self._default))

    def advise(self, begin: int, sizes: Sequence[int]) -> None:
        """Chunks of ``sizes`` rows from row ``begin`` of this prefill on; the latest advice counts.

        What is cut already stays, so of late advice only the boundaries ahead are kept. Rows before ``begin`` and
        behind the last size are cut evenly by the default; sizes below 1 are left out, sizes above the limit are cut
        evenly. Advice that says nothing about the rows ahead changes nothing.
        """
        boundaries, end = [begin], begin
        for size in sizes:
            if size > 0:
                end = min(end + size, self._rows)
                boundaries.append(end)
        if end <= max(begin, self._cut):
            return
        cut: list[int] = []
        position = self._cut
        for index, boundary in enumerate(boundaries):
            if boundary > position and (boundary - position >= LEAST_CHUNK or boundary == end):
                cut += chunk_sizes(boundary - position, self._limit if index else self._default)
                position = boundary
        cut += chunk_sizes(self._rows - position, self._default)
        self._sizes = deque(cut)
        self._advised = True

    def next(self) -> int:
        """Rows of the next chunk, which counts as cut from now on; 0 when nothing is left."""
        size = self._sizes.popleft() if self._sizes else 0
        most = size if self._first is None else max(self._first, GROWTH * self._cut)
        if size >= most + LEAST_CHUNK:
            size, left = most, size - most
            if self._advised:
                self._sizes.appendleft(left)
            else:
                self._sizes = deque(chunk_sizes(self._rows - self._cut - size, self._default))
        self._cut += size
        return size
