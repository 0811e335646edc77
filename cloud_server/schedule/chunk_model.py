"""How devices should cut their prompts: HAT's chunk size (Eq. 3), and when a schedule's last row is ready. Pure.

The model behind both is a link and a cloud that work at the same time. Chunk i of x_i rows has arrived when all rows up
to its last are sent; its step begins when the batch in progress is done, and stands in for chunk i in the cloud's P
stages, one after the other, each step / P long:

    arrive_i = A / beta_up * (x_1 + ... + x_i)
    step_i   = g(mu + x_i)
    start_i  = max(arrive_i + wait, start_(i-1) + step_(i-1) / P)
    ready_i  = max(start_i + step_i, ready_(i-1) + step_i / P)

``wait`` is the paper's longest wait for the batch of others, g(mu) / P, and 0 where nobody else computes (mu = 0); a
chunk that meets the step of its own predecessor waits for that and no longer. The second term of ``ready`` is a short
chunk held up in every stage by a long one before it.

Eq. 3 is the fixed point of these lines, equal chunks whose upload takes as long as their computing; ``chunk_search``
has others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wire.limits import FIRST_CHUNK

MIN_CHUNK = 16
"""A chunk has at least this many rows, where the prompt has them: below, a row costs nothing in a step."""

UNKNOWN_LINK_ROWS = 128
"""Size of a chunk while the bandwidth is not known: a chunk of this size is long enough to measure it."""

MOST_ROWS = 2**20
"""Where Eq. 3 asks for longer chunks than this, it has no root: the link is faster than the cloud at any size."""

LATE = 2.0
"""A schedule has to be good also where steps take so many times as long as expected: one that is tight everywhere is
late with the first step that is."""

THRESHOLD = 0.2
"""Sizes that differ by a smaller part than this are not worth a frame."""


@dataclass(frozen=True)
class Conditions:
    """What advice to one device depends on.

    Attributes:
        mu: rows of others in a step, a moving mean (Eq. 1); 0 when this device has the cloud to itself.
        g: seconds of a step by its rows, positive and never falling (what Eq. 2 is for).
        pipeline: stages a step passes through, each with an equal part of its time (P).
        row_bytes: bytes of one row on the way up (A).
        up_bytes_s: measured bandwidth up in bytes a second (beta_up), None where it is not known yet.
        cap_rows: no chunk is larger: what a frame holds, and what protects the decoders that share its step.
    """

    mu: float
    g: Callable[[float], float]
    pipeline: int
    row_bytes: int
    up_bytes_s: float | None
    cap_rows: int

    def __post_init__(self) -> None:
        assert self.pipeline > 0 and self.row_bytes > 0 and self.cap_rows > 0 and self.mu >= 0
        assert self.up_bytes_s is None or self.up_bytes_s > 0

    @property
    def row_s(self) -> float:
        """Seconds the upload of one row takes. The bandwidth must be known."""
        assert self.up_bytes_s is not None
        return self.row_bytes / self.up_bytes_s

    @property
    def wait_s(self) -> float:
        """Seconds a chunk waits at most for the batch of others that is in the first stage."""
        return self.g(self.mu) / self.pipeline if self.mu > 0 else 0.0

    def late(self) -> Conditions:
        """Return the same conditions where steps take ``LATE`` times as long."""
        return replace(self, g=lambda rows: LATE * self.g(rows))


def eq3_rows(conditions: Conditions) -> int | None:
    """Return the X of Eq. 3: rows of a chunk whose upload takes as long as its wait and its computing in one stage.

    None where there is no such size, because each row computes longer than it uploads. The bandwidth must be known.
    """
    waiting, g, stages = conditions.g(conditions.mu), conditions.g, conditions.pipeline

    def uploads_longer(rows: int) -> bool:
        return rows * conditions.row_s >= (waiting + g(conditions.mu + rows)) / stages

    high = 1
    while not uploads_longer(high):
        high *= 2
        if high > MOST_ROWS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if uploads_longer(middle) else (middle, high)
    return high


def chunk_rows(conditions: Conditions) -> int:
    """Return the one size for a device without a schedule: Eq. 3's, between ``MIN_CHUNK`` and the cap.

    Where Eq. 3 has no root the cloud is slower than the link at every size: it never waits for rows after the first
    chunk, and every chunk costs it the fixed part of a step again. So the answer is the cap, the fewest steps. Where
    the bandwidth is not known it is ``UNKNOWN_LINK_ROWS``.
    """
    if conditions.up_bytes_s is None:
        return min(UNKNOWN_LINK_ROWS, conditions.cap_rows)
    return min(max(eq3_rows(conditions) or conditions.cap_rows, MIN_CHUNK), conditions.cap_rows)


def first_rows(conditions: Conditions, size: int) -> int:
    """Return the most rows of a prompt's first chunk, where the others are of ``size``. It is short, since the link is
    idle until the device has computed it, but not shorter than what is uploaded within a step: each chunk costs one."""
    if conditions.up_bytes_s is None:
        return min(FIRST_CHUNK, size)
    return min(max(FIRST_CHUNK, math.ceil(conditions.g(1) / conditions.row_s)), size)


def ready_s(conditions: Conditions, sizes: Sequence[int]) -> float:
    """Return the seconds from the first byte sent to the last row's result, by the recursion above. The bandwidth must
    be known."""
    stages, wait_s, row_s = conditions.pipeline, conditions.wait_s, conditions.row_s
    arrive = free = ready = 0.0
    for size in sizes:
        step_s = conditions.g(conditions.mu + size)
        arrive += size * row_s
        start = max(arrive + wait_s, free)
        free = start + step_s / stages
        ready = max(start + step_s, ready + step_s / stages)
    return ready


def differs(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether two cuts of a prompt differ by more than ``THRESHOLD``: in their number of chunks, or in the size of any,
    against that size or the mean size, whichever is larger: a small last chunk alone is no difference."""
    if abs(len(old) - len(new)) > THRESHOLD * max(len(old), len(new)):
        return True
    mean = (sum(old) + sum(new)) / max(len(old) + len(new), 1)
    return any(abs(one - other) > THRESHOLD * max(one, other, mean) for one, other in zip(old, new, strict=False))
