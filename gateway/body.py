"""Reading a request body: of JSON, up to a size, within a time, and as much at once as leaves others room."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from starlette.requests import ClientDisconnect, Request

from gateway.errors import ClientGone, RequestError, for_client
from gateway.shares import within_share
from wire.errors import Code, SessionFailed

CLOSE: Final = {"Connection": "close"}

DISCARD_FACTOR: Final = 4
"""A body up to this many times too large is still read, and thrown away: a client that is cut off while it sends never
sees why."""


class Intake:
    """Reads bodies, and knows how much is being read at this moment, and whose it is."""

    def __init__(self, max_bytes: int, max_all_bytes: int, within_s: float) -> None:
        self._reading: Counter[str] = Counter()
        self._max_bytes = max_bytes
        self._max_all_bytes = max_all_bytes
        self._within_s = within_s

    async def read(self, request: Request, tenant: str) -> bytes:
        """Return the whole body.

        Raises:
            RequestError: it is not said to be JSON (400), too large (413), did not arrive in time (408), or too many,
                all together or of this tenant, arrive at once (503).
            ClientGone: the client left while sending.
        """
        _check_headers(request, self._max_bytes)
        try:
            return await asyncio.wait_for(self._gather(request, tenant), self._within_s)
        except (TimeoutError, asyncio.TimeoutError):
            message = f"the body did not arrive within {self._within_s:g} s"
            raise RequestError(408, message, code="body_timeout", headers=CLOSE) from None
        except ClientDisconnect:
            raise ClientGone from None

    async def _gather(self, request: Request, tenant: str) -> bytes:
        body, size = bytearray(), 0
        try:
            async for piece in request.stream():
                size += len(piece)
                if size <= self._max_bytes:
                    body += piece
                    self._reading[tenant] += len(piece)
                    if not within_share(self._reading[tenant], self._max_all_bytes - self._reading.total()):
                        error = for_client(SessionFailed(Code.OVERLOADED, "too many requests arrive at once"))
                        error.headers |= CLOSE
                        raise error
                elif size > DISCARD_FACTOR * self._max_bytes:
                    break
        finally:
            self._reading[tenant] -= len(body)
            if not self._reading[tenant]:
                del self._reading[tenant]
        if size > self._max_bytes:
            raise _too_large(self._max_bytes)
        return bytes(body)


def _check_headers(request: Request, max_bytes: int) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Also keeps web pages out: a browser asks before it sends this type to another origin.
    if kind != "application/json":
        raise RequestError(400, "send the body as 'Content-Type: application/json'", code="invalid_content_type")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and (len(length) > 18 or int(length) > max_bytes):
        waits = "expect" in request.headers  # The client has sent nothing yet and reads our answer first.
        if waits or len(length) > 18 or int(length) > DISCARD_FACTOR * max_bytes:
            raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> RequestError:
    # What is still to come of the body is not read: the connection cannot go on.
    return RequestError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large", headers=CLOSE)
