"""How devices should cut their prompts: HAT's chunk size (Eq. 3), and shaped schedules that need fewer chunks. Pure.

The model behind both is a link and a cloud that work at the same time. Chunk i of x_i rows has arrived when all rows up
to its last are sent; its step begins when the batch in progress is done, and stands in for chunk i in the cloud's P
stages, one after the other, each g / P long:

    arrive_i = A / beta_up * (x_1 + ... + x_i) + i * chunk_s
    start_i  = max(arrive_i + wait, start_(i-1) + g(mu + x_(i-1)) / P)
    ready_i  = max(start_i + g(mu + x_i), ready_(i-1) + g(mu + x_i) / P)

``wait`` is the paper's longest wait for the batch of others, g(mu) / P, and 0 where nobody else computes (mu = 0); a
chunk that meets the step of its own predecessor waits for that and no longer. The second term of ``ready`` is a short
chunk held up in every stage by a long one before it.

Eq. 3 is the fixed point of these lines, equal chunks whose upload takes as long as their computing. A slow link hides
all computing but the last chunk's, so a few large chunks and small last ones do the same; a fast link hides nearly all
of the upload behind computing, so chunks should begin small and grow as long as the next is there in time. In between
many schedules are ready at nearly the same time, and differ in how late they are where steps take longer than expected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

MIN_CHUNK = 16
"""A chunk has at least this many rows, where the prompt has them: below, a row costs nothing in a step."""

UNKNOWN_LINK_ROWS = 128
"""Size of a chunk while the bandwidth is not known: a chunk of this size is long enough to measure it."""

FEW_CHUNKS = 16
"""A shaped schedule has at most this many chunks, unless the cap forces more."""

MOST_ROWS = 2**20
"""Where Eq. 3 asks for longer chunks than this, it has no root: the link is faster than the cloud at any size."""

LATE = 2.0
"""A schedule has to be good also where steps take so many times as long as expected: one that is tight everywhere is
late with the first step that is."""

TIE = 0.005
"""A schedule that is worse by at most this part is as good, and better if it has fewer chunks."""

THRESHOLD = 0.2
"""Sizes that differ by a smaller part than this are not worth a frame."""

_GRID = 64
"""Positions between which a schedule may cut."""

_LONG = 12
"""A prompt that the cap forces into more chunks than this is shaped at one of its ends only."""


@dataclass(frozen=True)
class Conditions:
    """What advice to one device depends on.

    Attributes:
        mu: rows of others in a step, a moving mean (Eq. 1); 0 when this device has the cloud to itself.
        g: seconds of a step by its rows, positive and never falling (Eq. 2).
        pipeline: stages a step passes through, each with an equal part of its time (P).
        row_bytes: bytes of one row on the way up (A).
        up_bytes_s: measured bandwidth up in bytes a second (beta_up), None where it is not known yet.
        cap_rows: no chunk is larger: what a frame holds, and what protects the decoders that share its step.
        chunk_s: what one more chunk costs on the way whatever its size, in seconds.
    """

    mu: float
    g: Callable[[float], float]
    pipeline: int
    row_bytes: int
    up_bytes_s: float | None
    cap_rows: int
    chunk_s: float = 0.0

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


def eq3_rows(conditions: Conditions) -> int | None:
    """The X of Eq. 3: rows of a chunk whose upload takes as long as its wait and its computing in one stage.

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
    """The one size for a device without a schedule: Eq. 3's, between ``MIN_CHUNK`` and the cap.

    Where Eq. 3 has no root the cloud is slower than the link at every size: it never waits for rows after the first
    chunk, and every chunk costs it the fixed part of a step again. So the answer is the cap, the fewest steps. Where
    the bandwidth is not known it is ``UNKNOWN_LINK_ROWS``.
    """
    if conditions.up_bytes_s is None:
        return min(UNKNOWN_LINK_ROWS, conditions.cap_rows)
    return min(max(eq3_rows(conditions) or conditions.cap_rows, MIN_CHUNK), conditions.cap_rows)


def ready_s(conditions: Conditions, sizes: Sequence[int]) -> float:
    """Seconds from the first byte sent to the last row's result, by the recursion above. With a known bandwidth."""
    g, stages, wait_s, row_s = conditions.g, conditions.pipeline, conditions.wait_s, conditions.row_s
    arrive = free = ready = 0.0
    for size in sizes:
        step_s = g(conditions.mu + size)
        arrive += size * row_s + conditions.chunk_s
        start = max(arrive + wait_s, free)
        free = start + step_s / stages
        ready = max(start + step_s, ready + step_s / stages)
    return ready


def schedule(conditions: Conditions, rows: int) -> list[int]:
    """Sizes that add up to ``rows``, none above the cap, that have the last row's result ready soon: with steps as long
    as expected, and ``LATE`` times as long, as little later than the soonest of either as can be, on average.

    Among those as good by ``TIE`` it is the one with the fewest chunks. Without a bandwidth: equal chunks of
    ``chunk_rows``. Takes one to four milliseconds where the cap forces no more than about a hundred chunks, and longer
    in proportion to their number beyond.
    """
    if rows <= 0:
        return []
    one_size = _equal(rows, -(-rows // chunk_rows(conditions)))
    if conditions.up_bytes_s is None:
        return one_size
    late = replace(conditions, g=lambda size: LATE * conditions.g(size))
    forced = -(-rows // conditions.cap_rows)
    candidates = [_equal(rows, count) for count in range(forced, max(min(FEW_CHUNKS, rows // MIN_CHUNK), forced) + 1)]
    candidates += [one_size, *_shaped(conditions, rows), *_shaped(late, rows)]
    times = [(ready_s(conditions, sizes), ready_s(late, sizes)) for sizes in candidates]
    soonest, soonest_late = (min(each) for each in zip(*times, strict=True))
    regrets = [(in_time / soonest + delayed / soonest_late) / 2 for in_time, delayed in times]
    least = min(regrets)
    return min(
        (len(sizes), regret, sizes)
        for regret, sizes in zip(regrets, candidates, strict=True)
        if regret <= least * (1 + TIE)
    )[2]


def differs(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether two cuts of a prompt differ by more than ``THRESHOLD``: in their number of chunks, or in the size of any,
    against that size or the mean size, whichever is larger: a small last chunk alone is no difference."""
    if abs(len(old) - len(new)) > THRESHOLD * max(len(old), len(new)):
        return True
    mean = (sum(old) + sum(new)) / max(len(old) + len(new), 1)
    return any(abs(one - other) > THRESHOLD * max(one, other, mean) for one, other in zip(old, new, strict=False))


def _equal(rows: int, count: int) -> list[int]:
    size, larger = divmod(rows, count)
    return [size + 1] * larger + [size] * (count - larger)


def _shaped(conditions: Conditions, rows: int) -> Iterator[list[int]]:
    """Candidates of unequal chunks.

    A long prompt is shaped where shape matters, at its begin or its end, with chunks of the cap between.
    """
    cap = conditions.cap_rows
    if -(-rows // cap) > _LONG:
        middle = [cap] * (rows // cap - _LONG // 2)
        shaped = rows - sum(middle)
        for sizes in _shaped(conditions, shaped):
            yield sizes + middle if sizes[-1] >= sizes[0] else middle + sizes
            yield middle + sizes
        return
    yield from _programme(conditions, rows)


def _programme(conditions: Conditions, rows: int) -> Iterator[list[int]]:
    """The soonest schedule of one chunk, of two, and so on, over a grid of positions.

    ``frees[k][p]`` is the soonest time the first stage has done the rows up to grid position p in k chunks. It never
    falls with p, and a larger last chunk never computes shorter; so among the predecessors that are done before the
    last chunk arrives the nearest is best, and only the ones behind it need be compared. With one stage that is the
    best on the grid; with several, it does not see that a long chunk holds up a short one behind it in all of them.
    """
    cap = conditions.cap_rows
    last = max(min(_GRID, rows // MIN_CHUNK), -(-rows // cap))
    positions = [index * rows // last for index in range(last + 1)]
    reach = min(cap * last // rows, last)
    stages, infinity = conditions.pipeline, float("inf")
    computes = [conditions.g(conditions.mu + -(-index * rows // last)) / stages for index in range(reach, 0, -1)]
    uploads = [position * conditions.row_s + conditions.wait_s for position in positions]
    frees: list[list[float]] = [[0.0] + [infinity] * last]
    froms: list[list[int]] = [[0] * (last + 1)]
    soonest, idle = infinity, 0
    for count in range(1, max(FEW_CHUNKS, -(-last // reach)) + 1):
        before = frees[-1]
        after, chosen = [infinity] * (last + 1), [0] * (last + 1)
        for end in range(count, last + 1):
            arrive = uploads[end] + count * conditions.chunk_s
            first = max(end - reach, count - 1)
            nearest = max(bisect_right(before, arrive, count - 1, end) - 1, first)
            done = before[nearest]
            soon, source = (done if done > arrive else arrive) + computes[reach - end + nearest], nearest
            if nearest + 1 < end:
                offset = reach - end
                times = list(map(float.__add__, before[nearest + 1 : end], computes[offset + nearest + 1 :]))
                least = min(times)
                if least < soon:
                    soon, source = least, nearest + 1 + times.index(least)
            after[end], chosen[end] = soon, source
        frees.append(after)
        froms.append(chosen)
        if after[last] < infinity:
            cuts = [last]
            for step in range(count, 0, -1):
                cuts.append(froms[step][cuts[-1]])
            yield [positions[end] - positions[begin] for end, begin in pairwise(cuts)][::-1]
            idle = idle + 1 if after[last] > soonest * (1 - TIE / 4) else 0
            soonest = min(soonest, after[last])
            if idle == 2:
                return
