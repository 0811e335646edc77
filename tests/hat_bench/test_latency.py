"""Delays and shares, from records written by hand and from any at all."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import msgspec
import pytest
from bench.hat.latency import (
    TOGETHER_S,
    Record,
    decode_unit,
    goodput,
    latency,
    mean_interval,
    prefill_unit,
    span,
    tau,
    together,
    token_intervals,
)
from hypothesis import given
from hypothesis import strategies as st


def record(
    chunks: list[tuple[float, int]], due: float = 0.0, sent: float | None = None, prompt: int = 100, accepted: int = 0
) -> Record:
    """A request that was answered."""
    tokens = sum(each for _, each in chunks)
    first = chunks[0][0] if chunks else None
    sent = due if sent is None else sent
    return Record(1, due, sent, first, chunks, prompt, tokens, accepted, 2 * accepted, "00", "length")


FAILED = Record(2, 1.0, 1.0, error="stage_lost: gone")
NEVER_SENT = Record(3, 2.0, error="deadline")


@st.composite
def answers(draw: st.DrawFn) -> Record:
    """Any answered request: chunks of 1 to 8 tokens, some at once, some far apart."""
    due = draw(st.integers(0, 100_000)) / 1e3
    sent = due + draw(st.integers(1, 1000)) / 1e3
    at = sent
    chunks = []
    for _ in range(draw(st.integers(1, 30))):
        at += draw(st.sampled_from([0.0, 0.0001, 0.002, 0.05, 1.0]))
        chunks.append((at, draw(st.integers(1, 8))))
    tokens = sum(each for _, each in chunks)
    return record(chunks, due, sent, draw(st.integers(1, 2000)), draw(st.integers(0, tokens - 1)))


@given(answers())
def test_intervals_add_up(one: Record) -> None:
    """There is one for each token behind the first, and together they are the time from the first to the last."""
    intervals, groups = token_intervals(one), together(one)
    whole = groups[-1][0] - groups[0][0]
    assert len(intervals) == one.tokens - 1 and math.isclose(sum(intervals), whole, abs_tol=1e-9)
    assert sum(each for _, each in groups) == one.tokens
    # What is joined to the last group came at most so much after it began.
    slack = TOGETHER_S * len(one.chunks)
    assert abs(mean_interval(one) * max(1, one.tokens - 1) - whole) <= slack + 1e-9


@given(st.lists(answers(), min_size=1, max_size=6))
def test_any_records(records: list[Record]) -> None:
    """Figures are finite, quantiles rise, nothing is lost, and it is all JSON."""
    found = latency([*records, FAILED, NEVER_SENT])
    assert found.requests == len(records) + 2 and found.failed == 2
    assert found.tokens == sum(each.tokens for each in records) and found.ttft.count == len(records)
    for each in (found.ttft, found.tbt_request, found.tbt_token, found.late):
        assert each.p50 <= each.p90 <= each.p99 <= each.most and each.std >= 0
    assert found.late.count == len(records) + 1
    assert found.tau >= 1 and math.isfinite(found.tau)
    json.dumps(asdict(found), allow_nan=False)


def test_one_by_hand() -> None:
    """Sent a tenth late, first token after half a second, then 1 + 2 + 4 tokens in two gaps of 0.3 and 0.6 s."""
    one = record([(1.6, 1), (1.9, 1), (1.9001, 1), (2.5, 4)], due=1.0, sent=1.1, prompt=256, accepted=4)
    found = latency([one])
    assert found.ttft.p50 == pytest.approx(0.5)
    assert found.late.most == pytest.approx(0.1)
    assert token_intervals(one) == pytest.approx([0.15, 0.15, 0.15, 0.15, 0.15, 0.15])
    assert found.tbt_request.mean == pytest.approx(0.9 / 6)
    assert prefill_unit(one) == pytest.approx(0.25) and decode_unit(one) == pytest.approx(1.5)
    assert found.span_s == pytest.approx(2.5) and found.tokens_s == pytest.approx(7 / 2.5)
    assert (found.proposed, found.accepted, found.tau) == (8, 4, 3.0)


def test_prompts_shorter_than_a_unit() -> None:
    """They count as one: a short prompt has no stricter limit than one of 128 tokens."""
    for prompt in (1, 64, 128):
        assert prefill_unit(record([(0.4, 1)], prompt=prompt)) == pytest.approx(0.4)
    assert prefill_unit(record([(0.4, 1)], prompt=512)) == pytest.approx(0.1)


def test_limits() -> None:
    """Failed requests keep none, a single token keeps any limit of decoding."""
    fast, slow = record([(0.1, 1), (0.2, 1)]), record([(0.4, 1), (1.4, 1)])
    single = record([(0.1, 1)])
    records = [fast, slow, single, FAILED]
    assert [prefill_unit(each) for each in records] == pytest.approx([0.1, 0.4, 0.1, math.inf])
    assert [decode_unit(each) for each in records] == pytest.approx([1.0, 10.0, 0.0, math.inf])
    # Of four requests due from 0 on, the last token at 1.4 s, two keep both limits.
    assert goodput(records, 0.2, 2.0) == pytest.approx(2 / 1.4) and span(records) == pytest.approx(1.4)
    assert goodput(records, 0.2, 0.5) == pytest.approx(1 / 1.4)


def test_a_load_begins_before_its_first_request() -> None:
    """Two requests in two seconds, the first due after one: that is one a second, not two."""
    late = [record([(1.1, 1)], due=1.0), record([(2.0, 1)], due=1.9)]
    assert span(late) == pytest.approx(2.0) and goodput(late, 0.2, 2.0) == pytest.approx(1.0)


def test_tau() -> None:
    """Tokens behind the first over verifications; the tokens of failed requests are in neither."""
    drafted = record([(0.0, 1), (1.0, 12)], accepted=8)
    plain = record([(0.0, 1), (1.0, 4)])
    assert tau([drafted]) == pytest.approx(12 / 4) and tau([plain]) == 1.0
    assert tau([drafted, plain]) == pytest.approx(16 / 8)
    assert tau([drafted, msgspec.structs.replace(plain, error="deadline")]) == pytest.approx(3.0)
    assert tau([]) == tau([record([(0.0, 1)])]) == 1.0
    # The limit of tokens cut its only verification before its own token.
    assert tau([record([(0.0, 1), (1.0, 3)], accepted=3)]) == 3.0


def test_nothing_at_all() -> None:
    """No records, or none answered, are no division by zero."""
    for records in ([], [FAILED, NEVER_SENT]):
        found = latency(records)
        assert (found.tokens_s, found.span_s, found.tau, found.ttft.count) == (0.0, 0.0, 1.0, 0)
        assert goodput(records, 1, 1) == 0.0
    assert latency([FAILED, NEVER_SENT]).failed == 2
