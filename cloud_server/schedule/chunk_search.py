"""Cuts of a prompt that have its last row's result ready soonest, by the model in ``chunk_model``. Pure.

A slow link hides all computing but the last chunk's, so a few large chunks and small last ones are as soon as Eq. 3's
many; a fast link hides nearly all of the upload behind computing, so chunks should begin small and grow as long as the
next is there in time. In between many schedules are ready at nearly the same time, and differ in how late they are
where steps take longer than expected. So what is tried are equal chunks, and chunks that grow or shrink by a constant
ratio: of all cuts into whole eighths of a prompt none is better by more than 2 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from cloud_server.schedule.chunk_model import MIN_CHUNK, Conditions, chunk_rows, ready_s

FEW_CHUNKS = 16
"""A schedule has at most this many chunks, unless the cap forces more."""

TIE = 0.006
"""A schedule that is worse by at most this part is as good, and better if it has fewer chunks."""

RATIOS = (1.3, 1.6, 2.0, 2.5, 3.0, 4.0)
"""By which chunks grow or shrink."""

MOST_SHAPED = 8
"""Chunks that do; what is more than they hold goes in chunks of the cap's size."""

_USUAL_RATIO = 2.0
"""The one that is tried where the cap forces more than ``FEW_CHUNKS``, whose shape matters little."""


def schedule(conditions: Conditions, rows: int) -> list[int]:
    """Return sizes that add up to ``rows``, none above the cap, and have the last row's result ready soon.

    Soon is judged with steps as long as expected and with steps ``LATE`` times as long: the cut is chosen that is, on
    average of the two, the least later than the soonest of each. Of those as good by ``TIE`` it is the one with the
    fewest chunks. Without a bandwidth: equal chunks of ``chunk_rows``. Takes one to five milliseconds where the cap
    forces no more than about a hundred chunks, and longer in proportion to their number beyond.
    """
    if rows <= 0:
        return []
    one_size = _equal(rows, -(-rows // chunk_rows(conditions)))
    if conditions.up_bytes_s is None:
        return one_size
    late = conditions.late()
    candidates = [one_size, *_candidates(rows, conditions.cap_rows)]
    times = [(ready_s(conditions, sizes), ready_s(late, sizes)) for sizes in candidates]
    soonest, soonest_late = (min(each) for each in zip(*times, strict=True))
    regrets = [(in_time / soonest + delayed / soonest_late) / 2 for in_time, delayed in times]
    least = min(regrets)
    return min(
        (len(sizes), regret, sizes)
        for regret, sizes in zip(regrets, candidates, strict=True)
        if regret <= least * (1 + TIE)
    )[2]


def _candidates(rows: int, cap: int) -> Iterator[list[int]]:
    forced = -(-rows // cap)
    for count in range(forced, max(min(FEW_CHUNKS, rows // MIN_CHUNK), forced) + 1):
        yield _equal(rows, count)
    for ratio in RATIOS if forced <= FEW_CHUNKS else (_USUAL_RATIO,):
        for count in range(2, MOST_SHAPED + 1):
            growing = _growing(rows, count, ratio, cap)
            if growing[0] >= MIN_CHUNK:
                yield growing
                yield growing[::-1]


def _growing(rows: int, count: int, ratio: float, cap: int) -> list[int]:
    """``count`` chunks, each longer by ``ratio`` than the one before, and as many of the cap's size behind them as it
    takes for none to be above it."""
    lengths = [ratio**index for index in range(count)]
    capped = max(0, math.ceil(rows / cap - sum(lengths) / lengths[-1]))
    left, ends = max(0, rows - capped * cap), [0]
    for index in range(1, count + 1):
        ends.append(round(left * sum(lengths[:index]) / sum(lengths)))
    return [*(end - begin for begin, end in pairwise(ends)), *[cap] * capped]


def _equal(rows: int, count: int) -> list[int]:
    size, larger = divmod(rows, count)
    return [size + 1] * larger + [size] * (count - larger)
