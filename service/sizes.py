"""Sizes of memory as people write them."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"": 10**6, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE: Final = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([a-z]*)\s*", re.IGNORECASE)


def bytes_of(flag: str, text: str) -> int:
    """What was given to ``flag``: ``2GiB``, ``1.5GB``, ``500MB``; a number alone is MB, and nothing is 0.

    Raises ValueError for anything else.
    """
    if not text:
        return 0
    found = _SIZE.fullmatch(text)
    if found is None or found[2].lower() not in _UNITS:
        raise ValueError(f"{flag} is a size such as 2GiB, 1.5GB or 500MB, and {text!r} is not")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def for_each(flag: str, text: str, count: int) -> list[str]:
    """Sizes written with commas, one for each of so many, in their order; one alone is for all of them.

    Raises ValueError where there are not as many, or one is no size.
    """
    sizes = [part.strip() for part in text.split(",")]
    for size in sizes:
        bytes_of(flag, size)
    if len(sizes) not in (1, count) or (len(sizes) > 1 and not all(sizes)):
        each = "devices; it must be one, or one for each"
        allowed = f"{count} {each}" if count > 1 else "one device: leave the others out"
        raise ValueError(f"{flag} says {len(sizes)} sizes for {allowed}")
    return sizes * count if len(sizes) == 1 else sizes
