"""What the records of a load say: delays, how many requests keep a limit, tokens a second. Pure; all times in seconds.

TBT is told two ways. ``tbt_request`` is the paper's: of each request the mean interval, last minus first token over the
tokens behind the first. ``tbt_token`` has every interval between two tokens, where tokens that come together share the
gap before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec
from bench.hat.lengths import quantile

PREFILL_UNIT: Final = 128
"""Prompt tokens that the paper's prefill SLA is for; a shorter prompt counts as one unit."""

DECODE_UNIT: Final = 10
"""Tokens that its decode SLA is for."""

PREFILL_SLA_S: Final = 0.35
DECODE_SLA_S: Final = 0.5
"""Limits of goodput for 128 prompt tokens and for 10 tokens on the paper's machine: its HAT keeps them on SpecBench for
all and for half of its requests (section 4.2). Here they are longer by as much as our cloud's steps are."""

TOGETHER_S: Final = 1e-3
"""Messages that arrive closer than this were made by one step: every token of a verified draft is a message."""


class TimeSpent(msgspec.Struct, frozen=True):
    """Where time went, in milliseconds, as the server says: its ``timings``."""

    device_ms: float
    link_ms: float
    queue_ms: float
    step_ms: float


class RoundsSpent(TimeSpent, frozen=True):
    """The same, summed over rounds."""

    rounds: int


class Timings(msgspec.Struct, frozen=True):
    """Until the prompt was answered, and after that."""

    prompt: TimeSpent
    decode: RoundsSpent


class Record(msgspec.Struct, frozen=True):
    """One request as the client saw it; times are from the start of the plan.

    Attributes:
        due_s, sent_s: when it should have been sent, and was; None: it never was.
        first_s: when its first token came; None: none came.
        chunks: of every message with tokens, when it came and how many.
        prompt_tokens, tokens: as the server counted them; 0 where it did not come to that.
        accepted, proposed: drafted tokens.
        text_digest: of the whole text, to compare answers.
        finish: ``stop`` or ``length``; empty where it failed.
        error: why it failed; empty: it did not.
        timings: where its time went; None where the server did not say.
    """

    id: int | str
    due_s: float
    sent_s: float | None = None
    first_s: float | None = None
    chunks: list[tuple[float, int]] = []
    prompt_tokens: int = 0
    tokens: int = 0
    accepted: int = 0
    proposed: int = 0
    text_digest: str = ""
    finish: str = ""
    error: str = ""
    timings: Timings | None = None

    @property
    def complete(self) -> bool:
        """Whether it was answered to the end."""
        return not self.error and self.first_s is not None and self.sent_s is not None


@dataclass(frozen=True)
class Spread:
    """A distribution; 0 throughout where there is nothing."""

    count: int = 0
    mean: float = 0.0
    std: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    most: float = 0.0


@dataclass(frozen=True)
class Latency:
    """What all records of a load come to.

    Attributes:
        requests, failed: failed ones are in no distribution.
        tokens: of the answered requests.
        span_s: from the load's begin to the last token.
        tokens_s: tokens a second of it.
        ttft: to the first token, from when the request was sent.
        tbt_request, tbt_token: see above.
        late: sent minus due: what the client itself is to blame for.
        proposed, accepted: drafted tokens.
        tau: tokens of a verification, its own included; 1 without drafts.
    """

    requests: int
    failed: int
    tokens: int
    span_s: float
    tokens_s: float
    ttft: Spread
    tbt_request: Spread
    tbt_token: Spread
    late: Spread
    proposed: int
    accepted: int
    tau: float


def read_records(lines: Iterable[str]) -> list[Record]:
    """Records from JSON lines. Raises ``msgspec.ValidationError`` or ``msgspec.DecodeError``, both ValueErrors."""
    decode = msgspec.json.Decoder(Record).decode
    return [decode(line) for line in lines if line.strip()]


def latency(records: Sequence[Record]) -> Latency:
    """All figures of these records."""
    answered = [each for each in records if each.complete]
    tokens, span_s = sum(each.tokens for each in answered), span(records)
    return Latency(
        requests=len(records),
        failed=len(records) - len(answered),
        tokens=tokens,
        span_s=span_s,
        tokens_s=tokens / span_s if span_s > 0 else 0.0,
        ttft=spread([ttft(each) for each in answered]),
        tbt_request=spread([mean_interval(each) for each in answered if each.tokens > 1]),
        tbt_token=spread([gap for each in answered for gap in token_intervals(each)]),
        late=spread([each.sent_s - each.due_s for each in records if each.sent_s is not None]),
        proposed=sum(each.proposed for each in answered),
        accepted=sum(each.accepted for each in answered),
        tau=tau(answered),
    )


def span(records: Sequence[Record]) -> float:
    """From the load's begin, before the first request, to the last token of any: else few requests would come at more
    than their rate."""
    return max((each.chunks[-1][0] for each in records if each.chunks), default=0.0)


def ttft(record: Record) -> float:
    """To the first token from when the request was sent; without end where it did not come."""
    if record.first_s is None or record.sent_s is None:
        return math.inf
    return record.first_s - record.sent_s


def mean_interval(record: Record) -> float:
    """The paper's TBT of one request; 0 for a single token."""
    tokens = sum(each for _, each in record.chunks)
    return (record.chunks[-1][0] - record.chunks[0][0]) / (tokens - 1) if tokens > 1 else 0.0


def together(record: Record) -> list[tuple[float, int]]:
    """Its chunks, those that came within ``TOGETHER_S`` of the one before joined to it, at the time of the first."""
    joined: list[tuple[float, int]] = []
    before = -math.inf
    for moment, tokens in record.chunks:
        if joined and moment - before < TOGETHER_S:
            joined[-1] = (joined[-1][0], joined[-1][1] + tokens)
        else:
            joined.append((moment, tokens))
        before = moment
    return joined


def token_intervals(record: Record) -> list[float]:
    """One for each token behind the first; those that came together share the gap, beside the first token it is 0."""
    chunks = together(record)
    intervals = [0.0] * (chunks[0][1] - 1) if chunks else []
    for (before, _), (moment, tokens) in pairwise(chunks):
        intervals += [(moment - before) / tokens] * tokens
    return intervals


def prefill_unit(record: Record) -> float:
    """What the prefill SLA limits: TTFT for each 128 tokens of the prompt; without end where it failed."""
    return ttft(record) / max(1.0, record.prompt_tokens / PREFILL_UNIT) if record.complete else math.inf


def decode_unit(record: Record) -> float:
    """What the decode SLA limits: the mean time of ten tokens behind the first; without end where it failed."""
    return mean_interval(record) * DECODE_UNIT if record.complete else math.inf


def goodput(records: Sequence[Record], prefill_limit_s: float, decode_limit_s: float) -> float:
    """Requests a second that keep both limits."""
    good = sum(prefill_unit(each) <= prefill_limit_s and decode_unit(each) <= decode_limit_s for each in records)
    span_s = span(records)
    return good / span_s if span_s > 0 else 0.0


def tau(records: Sequence[Record]) -> float:
    """Tokens a verification, from tokens and accepted drafts alone: what prefill gave is in no verification."""
    decoded = sum(each.tokens - 1 for each in records if each.complete and each.tokens > 1)
    accepted = sum(each.accepted for each in records if each.complete and each.tokens > 1)
    # A last round that the limit of tokens cut short may have given accepted tokens alone.
    return decoded / max(1, decoded - accepted) if decoded else 1.0


def spread(values: Sequence[float]) -> Spread:
    """Their distribution, straight lines between neighbours for quantiles, the deviation that of these values."""
    if not values:
        return Spread()
    ascending = sorted(values)
    mean = math.fsum(ascending) / len(ascending)
    std = math.sqrt(math.fsum((each - mean) ** 2 for each in ascending) / len(ascending))
    p50, p90, p99 = (quantile(ascending, share) for share in (0.5, 0.9, 0.99))
    return Spread(len(ascending), mean, std, p50, p90, p99, ascending[-1])
