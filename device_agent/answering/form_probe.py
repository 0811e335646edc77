"""Whether answers in a form can be held to it for long: a few are tried before one is begun.

An expression may need a state for nearly every text, and a grammar that has a text in many ways takes longer with each
token; either breaks off at one of llguidance's limits, in the middle of an answer. What is tried here is neither every
text nor the worst, so an answer may break off all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from time import thread_time
from typing import Final

import numpy
from llguidance import LLMatcher
from numpy.typing import NDArray

TOKENS: Final = 512
"""Of each text that is tried."""

PROBE_S: Final = 2.0
"""Processor time for all of them; most forms take a tenth of a millisecond a token."""


def breaks_off(form: LLMatcher, ends: Collection[int], tokens: int = TOKENS) -> str | None:
    """Return why an answer in this form would break off; None where none of those that are tried does.

    Two are tried: one that says the same token for as long as it may, and one of any tokens, always the same ones.

    Args:
        form: compiled, with the limits that answers have; it stays as it is.
        ends: tokens that end an answer.
    """
    began = thread_time()
    for repeats in (True, False):
        matcher, random = form.deep_copy(), Random(0)
        last: int | None = None
        for _ in range(tokens):
            if matcher.is_stopped() or thread_time() - began > PROBE_S:
                break
            may = numpy.frombuffer(matcher.compute_bitmask(), numpy.uint8).copy()
            if matcher.is_error():
                return matcher.get_error()
            for end in ends:
                if end // 8 < len(may):
                    may[end // 8] &= 255 - (1 << end % 8)
            last = last if repeats and last is not None and may[last // 8] >> last % 8 & 1 else _any_of(may, random)
            if last is None:
                break
            if not matcher.consume_token(last):
                return matcher.get_error()
    return None


def _any_of(may: NDArray[numpy.uint8], random: Random) -> int | None:
    """A token whose bit is set; None where there is none."""
    some = numpy.flatnonzero(may)
    if not len(some):
        return None
    at = int(some[random.randrange(len(some))])
    bits = [bit for bit in range(8) if int(may[at]) >> bit & 1]
    return at * 8 + random.choice(bits)
