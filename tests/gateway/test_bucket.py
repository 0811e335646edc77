"""Each token comes back a minute after it was taken, and no minute sees more than the limit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.bucket import PERIOD_S, Bucket, is_out
from gateway.limits.limits import Limits, Standing, duration

WAITS = st.floats(0, 40, allow_nan=False)
AMOUNTS = st.integers(1, 12)


@given(st.lists(st.tuples(WAITS, AMOUNTS), max_size=60), st.integers(1, 30), st.floats(0, 1e9, allow_nan=False))
def test_no_minute_sees_more_than_the_limit(steps: list[tuple[float, int]], limit: int, now: float) -> None:
    """Whatever is asked for whenever; and what was refused fits as soon as was said, and not much sooner."""
    bucket, taken = Bucket(), []
    for wait, amount in steps:
        now += wait
        fits = bucket.used(now) + amount <= limit
        assert fits is (bucket.wait_s(now, amount, limit) <= 0.0)
        if fits:
            bucket.take(now, amount)
            taken.append((now, amount))
        elif amount <= limit:
            later = now + bucket.wait_s(now, amount, limit)
            assert 0 < later - now <= PERIOD_S + 1
            assert Bucket(dict(bucket._taken)).used(later + 1e-6) + amount <= limit
            assert Bucket(dict(bucket._taken)).used(later - 1.001) + amount > limit
        else:
            assert bucket.wait_s(now, amount, limit) == math.inf
        assert sum(amount for at, amount in taken if now - at < PERIOD_S) <= limit
    if taken:
        assert Bucket(dict(bucket._taken)).used(now + bucket.reset_s(now) + 1e-6) == 0


@given(st.lists(st.tuples(WAITS, AMOUNTS, st.integers(0, 20)), max_size=40))
def test_settling_leaves_what_was_really_used(steps: list[tuple[float, int, int]]) -> None:
    """As if the right number had been taken at once."""
    bucket, right, now = Bucket(), Bucket(), 1000.0
    for wait, reserved, used in steps:
        now += wait
        bucket.settle(now, bucket.take(now, reserved), used - reserved)
        right.take(now, used)
        assert bucket.used(now) == right.used(now)


def test_what_nobody_looks_at_does_not_grow() -> None:
    """Many take from a bucket whose limit another place holds: it remembers a minute all the same."""
    bucket = Bucket()
    for second in range(10 * PERIOD_S):
        bucket.settle(second, bucket.take(second, 5), -5)
        assert len(bucket._taken) <= PERIOD_S + 2


def test_settling_late() -> None:
    """Behind its minute what was too much is back already, and what was too little counts from then on."""
    bucket = Bucket()
    second = bucket.take(0.0, 5)
    bucket.settle(100.0, second, -3)
    assert bucket.used(100.0) == 0
    bucket.settle(100.0, second, 7)
    assert bucket.used(100.0) == bucket.used(159.0) == 7 and bucket.used(161.0) == 0


def test_a_clock_that_was_set_back_locks_nobody_out() -> None:
    """What was taken in a future further off than a minute counts no more."""
    bucket = Bucket()
    bucket.take(10_000.0, 5)
    assert bucket.used(9_990.0) == 5
    assert bucket.used(6_400.0) == 0
    assert is_out(100, 100.9) and is_out(40, 100.0) and not is_out(39, 100.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.0119, "12ms"), (1.0, "1s"), (8.64, "8.64s"), (59.9999, "1m0s"), (86.4, "1m26.4s"), (360, "6m0s")],
)
def test_times_are_written_as_openai_does(seconds: float, text: str) -> None:
    """Milliseconds, seconds with a point, minutes and seconds."""
    assert duration(seconds) == text


def test_headers_tell_how_a_key_stands() -> None:
    """Of what is limited, all three; of what is not, nothing."""
    standing = Standing(100.5, Bucket({100: 1}), Bucket({50: 30, 100: 20}))
    assert standing.headers(Limits(requests=3, tokens=1000)) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "1m0.5s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "950",
        "x-ratelimit-reset-tokens": "1m0.5s",
    }
    assert standing.headers(Limits(concurrent=4)) == {}


def test_refusals_say_when_to_come_back() -> None:
    """By the limit that takes longest; a request that never fits says so, and that coming back is no use."""
    standing = Standing(100.5, Bucket({100: 3}), Bucket({50: 30, 100: 20}))
    requests = standing.refusal(Limits(requests=3, tokens=60), 20)
    assert (requests.status, requests.code, requests.type) == (429, "rate_limit_exceeded", "requests")
    assert requests.headers["Retry-After"] == "61" and requests.headers["retry-after-ms"] == "60500"
    assert "Limit 3, Used 3, Requested 1" in requests.message and "1m0.5s" in requests.message
    tokens = standing.refusal(Limits(requests=9, tokens=60), 20)
    assert tokens.type == "tokens" and tokens.headers["Retry-After"] == "11"
    never = standing.refusal(Limits(requests=3, tokens=60), 61)
    assert never.type == "tokens" and never.headers["x-should-retry"] == "false" and "Retry-After" not in never.headers
    crowd = Standing(100.5, open=5).refusal(Limits(concurrent=4), 1)
    assert crowd.headers["Retry-After"] == "2" and "4 requests open" in crowd.message
