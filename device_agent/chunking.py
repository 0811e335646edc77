"""How a prompt is cut into chunks. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from wire.limits import FIRST_CHUNK, LEAST_CHUNK

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


def begins_small(rows: int, row_bytes: int, up_bytes_s: float | None, step_s: float | None) -> bool:
    """Whether a prompt's first chunks had better be small: unless its upload is known to take less than a step of the
    cloud, which every further chunk costs. The cloud does this sum with its own numbers when it advises (``advising``);
    where the two disagree, its first schedule is for a chunk that was cut otherwise.

    Args:
        row_bytes: of one row on its way; ``up_bytes_s``: the link's bytes a second; ``step_s``: seconds of a step.
    """
    return up_bytes_s is None or step_s is None or rows * row_bytes > step_s * up_bytes_s


class Chunker:
    """Cuts one prefill chunk by chunk, so that advice from the cloud takes effect from the next chunk on.

    Args:
        rows: rows of this prefill.
        default: rows of a chunk where no advice says otherwise.
        limit: rows no chunk may exceed, whatever is advised.
        growing: chunks begin with at most ``FIRST_CHUNK`` rows and grow by ``GROWTH`` at most; else they have their
            sizes from the first on.
    """

    def __init__(self, rows: int, default: int, limit: int, *, growing: bool = True) -> None:
        assert limit > 0 and default > 0
        self._rows = rows
        self._default = min(default, limit)
        self._limit = limit
        self._cut = 0
        self._growing = growing
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
        most = max(FIRST_CHUNK, GROWTH * self._cut)
        if self._growing and size >= most + LEAST_CHUNK:
            size, left = most, size - most
            if self._advised:
                self._sizes.appendleft(left)
            else:
                self._sizes = deque(chunk_sizes(self._rows - self._cut - size, self._default))
        self._cut += size
        return size
