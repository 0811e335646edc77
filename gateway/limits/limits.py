"""What a key may do in a minute and at once, how it stands, and how a client is told. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gateway.errors import FINAL, RequestError
from gateway.limits.bucket import Bucket

MOST: Final = 2**40
"""Of any limit: sums of them are exact in redis' numbers too."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests and tokens a minute, and requests open at once; 0: as many as one likes."""

    requests: int = 0
    tokens: int = 0
    concurrent: int = 0

    @property
    def some(self) -> bool:
        """Whether anything is limited."""
        return bool(self.requests or self.tokens or self.concurrent)

    def __post_init__(self) -> None:
        """Raises ValueError where one is no limit."""
        if any(not 0 <= each <= MOST for each in (self.requests, self.tokens, self.concurrent)):
            raise ValueError(f"a limit is a number from 0 (none) to {MOST}")


@dataclass
class Standing:
    """What a tenant has had in the last minute, and has open; of all gateways where they share it.

    Attributes:
        now: seconds of the clock that the buckets go by.
        open: requests that are open, the one in question among them.
    """

    now: float
    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)
    open: int = 1

    def allows(self, limits: Limits, tokens: int) -> bool:
        """Whether one more request, of so many tokens, is within the limits. ``redis_limits`` has the same in Lua."""
        return (
            (not limits.requests or self.requests.used(self.now) < limits.requests)
            and (not limits.tokens or self.tokens.used(self.now) + tokens <= limits.tokens)
            and (not limits.concurrent or self.open <= limits.concurrent)
        )

    def take(self, limits: Limits, tokens: int) -> int:
        """Take a request and its tokens. Returns the second in which it was."""
        if limits.requests:
            self.requests.take(self.now, 1)
        return self.tokens.take(self.now, tokens if limits.tokens else 0)

    def headers(self, limits: Limits) -> dict[str, str]:
        """Return OpenAI's headers that say how a client stands."""
        found: dict[str, str] = {}
        for what, limit, bucket in (
            ("requests", limits.requests, self.requests),
            ("tokens", limits.tokens, self.tokens),
        ):
            if limit:
                found[f"x-ratelimit-limit-{what}"] = str(limit)
                found[f"x-ratelimit-remaining-{what}"] = str(max(0, limit - bucket.used(self.now)))
                found[f"x-ratelimit-reset-{what}"] = duration(bucket.reset_s(self.now))
        return found

    def refusal(self, limits: Limits, tokens: int) -> RequestError:
        """Return what a client is told whose request is not within the limits."""
        used, out = self.requests.used(self.now), self.tokens.used(self.now)
        headers = self.headers(limits)
        if limits.tokens and tokens > limits.tokens:
            text = f"this request is too large for the limit of this key on tokens per min (TPM): Limit {limits.tokens}"
            text += f", Requested {tokens}; shorten the prompt or lower 'max_tokens'"
            return RequestError(429, text, code="rate_limit_exceeded", kind="tokens", headers={**headers, **FINAL})
        waits = {
            "requests": self.requests.wait_s(self.now, 1, limits.requests) if limits.requests else 0.0,
            "tokens": self.tokens.wait_s(self.now, tokens, limits.tokens) if limits.tokens else 0.0,
        }
        kind = max(waits, key=lambda each: waits[each])
        if not waits[kind]:
            text = f"this key has {limits.concurrent} requests open, as many as it may; wait for one of them to end"
            return RequestError(
                429, text, code="rate_limit_exceeded", kind="requests", retry_s=OPEN_RETRY_S, headers=headers
            )
        said = {
            "requests": f"requests per min (RPM): Limit {limits.requests}, Used {used}, Requested 1",
            "tokens": f"tokens per min (TPM): Limit {limits.tokens}, Used {out}, Requested {tokens}",
        }[kind]
        text = f"rate limit of this key reached on {said}; try again in {duration(waits[kind])}"
        headers["retry-after-ms"] = str(math.ceil(waits[kind] * 1e3))
        return RequestError(429, text, code="rate_limit_exceeded", kind=kind, retry_s=waits[kind], headers=headers)


OPEN_RETRY_S: Final = 2.0
"""When to come back where too many are open: nobody knows how long they take."""


def duration(seconds: float) -> str:
    """Write a time as OpenAI's headers do: ``12ms``, ``8.64s``, ``6m0s``."""
    ms = math.ceil(seconds * 1e3)
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1e3:g}s"
