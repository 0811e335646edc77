"""Cuts of a prompt that have its last row's result ready soonest, by the model in ``advice``. Pure.

A slow link hides all computing but the last chunk's, so a few large chunks and small last ones are as soon as Eq. 3's
many; a fast link hides nearly all of the upload behind computing, so chunks should begin small and grow as long as the
next is there in time. In between many schedules are ready at nearly the same time, and differ in how late they are
where steps take longer than expected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

from cloud_server.advice import MIN_CHUNK, Conditions, chunk_rows, ready_s

FEW_CHUNKS = 16
"""A shaped schedule has at most this many chunks, unless the cap forces more."""

TIE = 0.005
"""A schedule that is worse by at most this part is as good, and better if it has fewer chunks."""

_GRID = 64
"""Positions between which a schedule may cut."""

_LONG = 12
"""A prompt that the cap forces into more chunks than this is shaped at one of its ends only."""


def schedule(conditions: Conditions, rows: int, begin: int = 0) -> list[int]:
    """Sizes that add up to ``rows``, none above the cap, that have the last row's result ready soon: with steps as long
    as expected, and ``LATE`` times as long, as little later than the soonest of either as can be, on average.

    ``begin``: positions that the session has already. Among those as good by ``TIE`` it is the one with the fewest
    chunks. Without a bandwidth: equal chunks of ``chunk_rows``. Takes one to five milliseconds where the cap forces no
    more than about a hundred chunks, and longer in proportion to their number beyond.
    """
    if rows <= 0:
        return []
    one_size = _equal(rows, -(-rows // chunk_rows(conditions)))
    if conditions.up_bytes_s is None:
        return one_size
    late = conditions.late()
    forced = -(-rows // conditions.cap_rows)
    candidates = [_equal(rows, count) for count in range(forced, max(min(FEW_CHUNKS, rows // MIN_CHUNK), forced) + 1)]
    candidates += [one_size, *_shaped(conditions, rows, begin), *_shaped(late, rows, begin)]
    times = [(ready_s(conditions, sizes, begin), ready_s(late, sizes, begin)) for sizes in candidates]
    soonest, soonest_late = (min(each) for each in zip(*times, strict=True))
    regrets = [(in_time / soonest + delayed / soonest_late) / 2 for in_time, delayed in times]
    least = min(regrets)
    return min(
        (len(sizes), regret, sizes)
        for regret, sizes in zip(regrets, candidates, strict=True)
        if regret <= least * (1 + TIE)
    )[2]


def _equal(rows: int, count: int) -> list[int]:
    size, larger = divmod(rows, count)
    return [size + 1] * larger + [size] * (count - larger)


def _shaped(conditions: Conditions, rows: int, begin: int) -> Iterator[list[int]]:
    """Candidates of unequal chunks.

    A long prompt is shaped where shape matters, at its begin or its end, with chunks of the cap between.
    """
    cap = conditions.cap_rows
    if -(-rows // cap) <= _LONG:
        yield from _programme(conditions, rows, begin)
        return
    middle = [cap] * (rows // cap - _LONG // 2)
    passed = sum(middle)
    for sizes in _programme(conditions, rows - passed, begin):
        yield sizes + middle
    for sizes in _programme(conditions, rows - passed, begin + passed):
        yield middle + sizes


def _programme(conditions: Conditions, rows: int, begin: int) -> Iterator[list[int]]:
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
    attends = [conditions.attention_s(begin + position) / stages for position in positions]
    uploads = [position * conditions.row_s + conditions.wait_s for position in positions]
    frees: list[list[float]] = [[0.0] + [infinity] * last]
    froms: list[list[int]] = [[0] * (last + 1)]
    soonest, idle = infinity, 0
    for count in range(1, max(FEW_CHUNKS, -(-last // reach)) + 1):
        before = frees[-1]
        unattended = list(map(float.__sub__, before, attends))
        after, chosen = [infinity] * (last + 1), [0] * (last + 1)
        for end in range(count, last + 1):
            arrive = uploads[end] + count * conditions.chunk_s
            first = max(end - reach, count - 1)
            nearest = max(bisect_right(before, arrive, count - 1, end) - 1, first)
            done = before[nearest]
            soon = (done if done > arrive else arrive) - attends[nearest] + computes[reach - end + nearest]
            source = nearest
            if nearest + 1 < end:
                offset = reach - end
                times = list(map(float.__add__, unattended[nearest + 1 : end], computes[offset + nearest + 1 :]))
                least = min(times)
                if least < soon:
                    soon, source = least, nearest + 1 + times.index(least)
            after[end], chosen[end] = soon + attends[end], source
        frees.append(after)
        froms.append(chosen)
        if after[last] < infinity:
            cuts = [last]
            for step in range(count, 0, -1):
                cuts.append(froms[step][cuts[-1]])
            yield [positions[end] - positions[start] for end, start in pairwise(cuts)][::-1]
            idle = idle + 1 if after[last] > soonest * (1 - TIE / 4) else 0
            soonest = min(soonest, after[last])
            if idle == 2:
                return
