"""What a load has shown, from what became of its requests. Pure.

TTFT is from when a request was sent until something of its answer came; TBT is from then to when more came, as a reader
feels it, stalls and all (what comes at once, as the tokens of an accepted draft, comes at one time); ITL is an answer's
mean time for a further token, by the server's count of them; E2E is from when a request was sent to the end of its
answer. Percentiles lie between neighbours as NumPy's do.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.bench.asked import NOT_SENT, Asked

MEASURES: Final = ("ttft", "tbt", "itl", "e2e")

LATE_MS: Final = 10.0
LATE_SHARE: Final = 0.05
"""The load itself is late where one request in a hundred was sent so much too late: by so much, and by so much of the
median TTFT. What comes is then noticed as late, and every figure is too large by about that."""

STALL: Final = 0.99
"""Of an answer's own gaps, this percentile has to keep the limit on TBT."""


@dataclass(frozen=True)
class Spread:
    """How some times are spread, in milliseconds; ``curve`` has their percentiles from 0 to 100."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    largest: float
    curve: tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """One rate.

    Attributes:
        rate: requests a second that were to be sent. seconds: from the first to the end of the last answer.
        due, sent, answered: requests. given_up: open when the time for the last answers was over.
        failed: of the others how many, by what they failed with; reasons: one of the server's messages for each.
        answered_s, tokens_s, good_s: answers, their tokens, and answers within all limits, a second.
        good: answers within all limits. in_one_piece: answers of several tokens that came at one time.
        prompt_tokens, tokens: of all answered requests; counted: the server has counted them, else they are the events.
        late: between when requests were due and when they were sent.
        too_late: the load could not keep its own times: its figures are not the server's.
    """

    rate: float
    seconds: float
    due: int
    sent: int
    answered: int
    given_up: int
    failed: Mapping[str, int]
    reasons: Mapping[str, str]
    answered_s: float
    tokens_s: float
    good: int
    in_one_piece: int
    good_s: float
    prompt_tokens: int
    tokens: int
    counted: bool
    ttft: Spread | None
    tbt: Spread | None
    itl: Spread | None
    e2e: Spread | None
    late: Spread | None
    too_late: bool


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in order, at least one; ``share``: 0 to 1."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(seconds: Iterable[float]) -> Spread | None:
    """How these times, in seconds, are spread; None where there are none."""
    ordered = sorted(each * 1e3 for each in seconds)
    if not ordered:
        return None
    curve = tuple(percentile(ordered, share / 100) for share in range(101))
    p50, p90, p95, p99 = (curve[share] for share in (50, 90, 95, 99))
    return Spread(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p95, p99, ordered[-1], curve)


def gaps(asked: Asked) -> list[float]:
    """Between the times at which more of an answer came, in seconds."""
    return [after - before for before, after in itertools.pairwise(asked.times)]


def tokens_of(asked: Asked) -> int:
    """Of an answer: as the server counts them, or else its events."""
    return asked.events if asked.tokens is None else asked.tokens


def times_of(asked: Asked) -> dict[str, float]:
    """What of ``MEASURES`` an answered request has, in seconds, each as its limit is applied to it."""
    found = {"e2e": asked.ended - asked.sent}
    if asked.times:
        found["ttft"] = asked.times[0] - asked.sent
        if len(asked.times) > 1:
            found["tbt"] = percentile(sorted(gaps(asked)), STALL)
            if (further := tokens_of(asked) - 1) > 0:
                found["itl"] = (asked.times[-1] - asked.times[0]) / further
    return found


def came_in_one_piece(asked: Asked) -> bool:
    """Whether an answer of several tokens came at one time, so that nobody knows how long a further token took."""
    return len(asked.times) == 1 and tokens_of(asked) > 1


def is_good(asked: Asked, limits: Mapping[str, float]) -> bool:
    """Whether an answer keeps all limits, in milliseconds. An answer that said nothing keeps none on its first token,
    and one in one piece none on its further ones; one of a single token has no gaps that could be too long."""
    times = times_of(asked)
    if "ttft" in limits and "ttft" not in times:
        return False
    if came_in_one_piece(asked) and not limits.keys().isdisjoint(("tbt", "itl")):
        return False
    return all(times[name] * 1e3 <= limit for name, limit in limits.items() if name in times)


def figures(rate: float, asked: Sequence[Asked], seconds: float, limits: Mapping[str, float]) -> Figures:
    """What one rate has shown. limits: milliseconds by names of ``MEASURES``."""
    sent = [each for each in asked if not math.isnan(each.sent)]
    answered = [each for each in asked if each.answered]
    failed = [each for each in asked if each.error]
    times = [times_of(each) for each in answered]
    good = sum(is_good(each, limits) for each in answered)
    tokens = sum(map(tokens_of, answered))
    late = spread(each.sent - each.due for each in sent)
    ttft = spread(each["ttft"] for each in times if "ttft" in each)
    return Figures(
        rate=rate,
        seconds=seconds,
        due=len(asked),
        sent=len(sent),
        answered=len(answered),
        given_up=len(asked) - len(answered) - len(failed),
        failed=dict(Counter(each.error for each in failed)),
        reasons={each.error: each.reason for each in reversed(failed) if each.reason},
        answered_s=len(answered) / seconds,
        tokens_s=tokens / seconds,
        good=good,
        in_one_piece=sum(map(came_in_one_piece, answered)),
        good_s=good / seconds,
        prompt_tokens=sum(each.prompt_tokens or 0 for each in answered),
        tokens=tokens,
        counted=all(each.tokens is not None for each in answered),
        ttft=ttft,
        tbt=spread(gap for each in answered for gap in gaps(each)),
        itl=spread(each["itl"] for each in times if "itl" in each),
        e2e=spread(each["e2e"] for each in times),
        late=late,
        too_late=NOT_SENT in {each.error for each in failed} or _too_late(late, ttft),
    )


def _too_late(late: Spread | None, ttft: Spread | None) -> bool:
    if late is None:
        return False
    return late.p99 > max(LATE_MS, LATE_SHARE * ttft.p50 if ttft is not None else 0.0)
