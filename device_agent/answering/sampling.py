"""How a request wants its tokens chosen, and each of its choices' own noise. Pure."""

from __future__ import annotations

import hashlib

from msgspec.structs import asdict

from split_model.sampling import BadSampling, SamplingParams
from wire.errors import Code, SessionFailed
from wire.request_messages import Sampling

MIN_TOP_P = 1e-6
"""What a ``top_p`` of 0 means: the likeliest token only."""


def sampling_of(given: Sampling) -> SamplingParams:
    """The sampling of a request. Raises ``SessionFailed`` naming the field."""
    try:
        seed = None if given.seed is None else given.seed % 2**64
        return SamplingParams(**asdict(given) | {"top_p": given.top_p or MIN_TOP_P, "seed": seed})
    except BadSampling as error:
        raise SessionFailed(Code.INVALID_REQUEST, str(error), param=error.field) from error


def seed_of(seed: int, index: int) -> int:
    """Each choice's own noise: the request's seed itself for the first, unrelated ones for the others."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:8], "little")
