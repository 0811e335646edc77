"""How a request wants its tokens chosen, what may end its answer, and each of its choices' own noise. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec.structs import asdict

from device_agent.answering.tokenizer import Tokenizer
from split_model.bans import Bans
from split_model.sampling import BadSampling, SamplingParams
from wire.errors import Code, SessionFailed
from wire.request_messages import Generate, Sampling

MIN_TOP_P = 1e-6
"""What a ``top_p`` of 0 means: the likeliest token only."""


def sampling_of(given: Sampling, usual: Mapping[str, Any]) -> SamplingParams:
    """The sampling of a request; ``usual`` are the model's own values of what it leaves out. Raises ``SessionFailed``
    naming the field."""
    values = asdict(given) | dict(usual)
    seed = None if given.seed is None else given.seed % 2**64
    try:
        return SamplingParams(**values | {"top_p": values["top_p"] or MIN_TOP_P, "seed": seed})
    except BadSampling as error:
        raise SessionFailed(Code.INVALID_REQUEST, str(error), param=error.field) from error


def ends_of(request: Generate, tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end an answer."""
    return frozenset(request.stop_token_ids) | (frozenset() if request.ignore_eos else tokenizer.end_ids)


def check_ids(request: Generate, vocabulary: int) -> None:
    """Raises ``SessionFailed``, naming the field, where an id is not below ``vocabulary``."""
    for field, ids in (
        ("logit_bias", request.sampling.logit_bias),
        ("stop_token_ids", request.stop_token_ids),
        ("allowed_token_ids", request.allowed_token_ids),
    ):
        if any(not 0 <= each < vocabulary for each in ids):
            raise SessionFailed(Code.INVALID_REQUEST, f"token ids go from 0 to {vocabulary - 1}", param=field)


def with_bans(params: SamplingParams, request: Generate, tokenizer: Tokenizer, vocabulary: int) -> SamplingParams:
    """The sampling with what a request bans. It makes tokens of text: call it on a thread.

    Raises:
        SessionFailed: a bad word has no tokens.
    """
    ends = (
        tuple(sorted(each for each in ends_of(request, tokenizer) if each < vocabulary)) if request.min_tokens else ()
    )
    words: dict[tuple[int, ...], None] = {}
    for at, word in enumerate(request.bad_words):
        spellings = tokenizer.spellings(word)
        if not spellings:
            raise SessionFailed(Code.INVALID_REQUEST, "a bad word has a token at least", param=f"bad_words[{at}]")
        # What has ids that the model does not say cannot come.
        words |= dict.fromkeys(each for each in spellings if max(each) < vocabulary)
    if not (request.allowed_token_ids or words or ends):
        return params
    allowed = tuple(dict.fromkeys(request.allowed_token_ids))
    return replace(params, bans=Bans(allowed, tuple(words), ends, request.min_tokens))


def seed_of(seed: int, index: int) -> int:
    """Each choice's own noise: the request's seed itself for the first, unrelated ones for the others."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:8], "little")
