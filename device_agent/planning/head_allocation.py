"""Where heads of a layer are computed, and which are left out, under a limit (EdgeFormer, Eq. 15 and 23). Pure.

Heads count one each, so Eq. 23 is no knapsack (Theorem 2 does not hold): which heads are kept depends on how many there
are alone, and the time on each member's number alone. So numbers are enumerated and the top scores kept: exact. What is
limited is Eq. 10's maximum over members, and the rest of the layer, its FFN too, which the paper leaves out of Eq. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agent.planning.limit import LimitTooShort
from split_model.pruning.liscore import LAMBDA


@dataclass(frozen=True)
class HeadTimes:
    """Seconds of one layer by how many heads each member computes; a head is a KV group with its queries.

    Attributes:
        heads: of each member, seconds until 0, 1, 2 … heads are computed and at home: rising. What a member has no
            room for is left out at the end (C1 of Eq. 23).
        rest_s: what the layer takes besides: norms, the FFN, and whatever heads cannot shorten.
    """

    heads: tuple[tuple[float, ...], ...]
    rest_s: float

    def seconds(self, counts: Sequence[int]) -> float:
        """Of the layer: members compute side by side."""
        return self.rest_s + max(of[count] for of, count in zip(self.heads, counts, strict=True))

    @property
    def floor_s(self) -> float:
        """With no head at all."""
        return self.seconds([0] * len(self.heads))

    @property
    def quickest_s(self) -> float:
        """T_min of Eq. 15: one head where it is computed soonest."""
        return min((of[1] for of in self.heads if len(of) > 1), default=0.0)


@dataclass(frozen=True)
class HeadAllocation:
    """The heads that each member computes, ascending. All others are left out."""

    members: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(map(len, self.members))

    @property
    def kept(self) -> int:
        return sum(self.counts)


def score(times: HeadTimes, importance: Sequence[float], allocation: HeadAllocation, weight: float = LAMBDA) -> float:
    """Eq. 23's sum of S_b = weight · I_b + (1 - weight) · T_min / T(b), which Eq. 15 has without T_min.

    importance: I_b of each head, 0 to 1. T(b) is that of all heads of its member (the paper's footnote 2).
    """
    found = 0.0
    for of, heads in zip(times.heads, allocation.members, strict=True):
        speed = times.quickest_s / of[len(heads)] if heads and of[len(heads)] else 1.0
        found += sum(weight * importance[head] + (1 - weight) * speed for head in heads)
    return found


def allocated(times: HeadTimes, importance: Sequence[float], limit_s: float, weight: float = LAMBDA) -> HeadAllocation:
    """As many heads as the limit allows, the most important; of all ways to place so many the one of most score.

    Raises LimitTooShort where the layer takes longer without any head.
    """
    if times.floor_s > limit_s:
        raise LimitTooShort(limit_s, times.floor_s)
    counts = _best_counts(times, len(importance), limit_s)
    return _placed(importance, counts)


def soonest(times: HeadTimes, importance: Sequence[float], kept: int) -> HeadAllocation:
    """`kept` heads at least, as soon as they can be done; and what there is time for meanwhile beside them.

    Where members compute side by side a head less on one of them saves nothing while another is as late: who is not
    last keeps what it has time for. Raises ValueError where there is no room for so many.
    """
    limits = sorted({times.rest_s + seconds for of in times.heads for seconds in of} | {times.floor_s})
    for limit_s in limits:
        room = sum(sum(times.rest_s + seconds <= limit_s for seconds in of) - 1 for of in times.heads)
        if limit_s >= times.floor_s and room >= kept:
            return allocated(times, importance, limit_s)
    raise ValueError(f"there is no room for {kept} heads")


def _best_counts(times: HeadTimes, heads: int, limit_s: float) -> list[int]:
    """Member by member: of each number of heads placed so far, the way of most speed (the other part of the score is
    the same for all)."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for of in times.heads:
        allowed = [count for count, seconds in enumerate(of) if times.rest_s + seconds <= limit_s]
        further: dict[int, tuple[float, list[int]]] = {}
        for placed, (speed, counts) in best.items():
            for count in allowed:
                if placed + count > heads:
                    break
                added = count * (times.quickest_s / of[count] if of[count] else 1.0)
                found = speed + added, [*counts, count]
                if placed + count not in further or found[0] > further[placed + count][0]:
                    further[placed + count] = found
        best = further
    return best[max(best)][1]


def _placed(importance: Sequence[float], counts: Sequence[int]) -> HeadAllocation:
    """The most important heads, in their order to the members: what lies side by side goes together."""
    ranked = sorted(range(len(importance)), key=lambda head: (-importance[head], head))
    kept = iter(sorted(ranked[: sum(counts)]))
    return HeadAllocation(tuple(tuple(next(kept) for _ in range(count)) for count in counts))


def algorithm_1(
    times: HeadTimes, importance: Sequence[float], limit_s: float, *, printed: bool = False
) -> HeadAllocation:
    """The paper's heuristic, for comparison: heads by falling importance, each where it adds least time and the limit
    still holds; else it is left out.

    printed: line 12 as it stands, which adds what a head takes to the time of members that compute beside it; else
    their maximum counts. Stage 3 never has anything left to do either way.
    """
    counts = [0] * len(times.heads)
    taken: list[list[int]] = [[] for _ in counts]
    for head in sorted(range(len(importance)), key=lambda head: (-importance[head], head)):
        room = [at for at, of in enumerate(times.heads) if counts[at] + 1 < len(of)]
        for at in sorted(room, key=lambda at: times.heads[at][counts[at] + 1]):
            after = [count + (other == at) for other, count in enumerate(counts)]
            seconds = times.seconds(after)
            if printed:
                seconds = times.seconds(counts) + times.heads[at][counts[at] + 1]
            if seconds <= limit_s:
                counts = after
                taken[at].append(head)
                break
    return HeadAllocation(tuple(tuple(sorted(heads)) for heads in taken))
