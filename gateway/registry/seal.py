"""What gateways write into redis is sealed: whoever has redis and not their token can neither add nor change anything.

A seal does not hide, and says nothing about when: what was true once can be put back.
"""

from __future__ import annotations

import hmac
from typing import Final

SEAL_BYTES: Final = 32


def sealed(token: str, purpose: str, data: bytes) -> bytes:
    """Return ``data`` behind its seal; one for another ``purpose`` does not fit."""
    return _seal(token, purpose, data) + data


def opened(token: str, purpose: str, data: object, most: int) -> bytes | None:
    """Return what is behind a seal; None where it is none of ours, or larger than ``most`` bytes."""
    if not isinstance(data, bytes) or not SEAL_BYTES <= len(data) <= SEAL_BYTES + most:
        return None
    seal, inside = data[:SEAL_BYTES], data[SEAL_BYTES:]
    return inside if hmac.compare_digest(seal, _seal(token, purpose, inside)) else None


def _seal(token: str, purpose: str, data: bytes) -> bytes:
    return hmac.digest(token.encode(), purpose.encode() + b"\0" + data, "sha256")
