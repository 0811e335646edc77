"""Server-sent events: objects in, bytes out. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.errors import ErrorReply
from gateway.reply_schema import Chunk

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Keep caches and proxies from holding chunks back."""

MEDIA_TYPE: Final = "text/event-stream; charset=utf-8"

_encode: Final = msgspec.json.Encoder().encode


def events(objects: Iterable[Chunk | ErrorReply]) -> bytes:
    """These objects as events, one after the other. JSON has no raw line ends, so each is a single ``data`` line."""
    return b"".join([b"data: %b\n\n" % _encode(each) for each in objects])
