"""Where work comes from: the id of a request, and the trace it belongs to, as strangers may write them. Pure.

A trace context is W3C's ``traceparent``: ``00-TRACE-SPAN-FLAGS``. Its companion ``tracestate`` is not passed on: what
it holds is anybody's text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_REQUEST_ID: Final = 128
"""Characters of an id that a client gives its request."""

MAX_PASSED_ID: Final = MAX_REQUEST_ID + 32
"""Of one that a gateway passes on: of a token websocket's requests each has its number behind the socket's."""

FLAGS: Final = 0x03
"""Those that are known: whether the trace is kept, and whether its id is random."""

_REQUEST_ID: Final = re.compile(rf"[A-Za-z0-9._:\-]{{1,{MAX_PASSED_ID}}}")
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def plain_id(given: str | None, most: int = MAX_PASSED_ID) -> str:
    """Return a request's id where it is plain (letters, digits and ``._:-``) and no longer than ``most`` characters,
    else an empty text."""
    good = given is not None and len(given) <= most and _REQUEST_ID.fullmatch(given)
    return given if good and given is not None else ""


def traceparent_of(given: Sequence[str]) -> str:
    """Return the trace context that was ``given``, as this release writes it, or an empty text where there is none,
    several, or one that is malformed: then a trace of its own begins here, as the standard has it."""
    found = _TRACEPARENT.fullmatch(given[0]) if len(given) == 1 else None
    if found is None:
        return ""
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(span, 16):
        return ""
    return f"00-{trace}-{span}-{int(flags, 16) & FLAGS:02x}"
