"""A client of the API that costs next to nothing, so that what is measured is the server: one request after another on
each connection, made beforehand, and of its answer only what says that it is good and where it ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

WITHIN_S = 60.0
HEAD_END, CHUNKS_END = b"\r\n\r\n", b"\r\n0\r\n\r\n"


def request_of(port: int, body: dict[str, Any], key: str = "", path: str = "/v1/chat/completions") -> bytes:
    """A request's bytes."""
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json"]
    head += [f"Content-Length: {len(data)}", *([f"Authorization: Bearer {key}"] if key else [])]
    return "\r\n".join([*head, "", ""]).encode() + data


class Caller(asyncio.Protocol):
    """One connection. ``ended`` is called with the status of each answer, and its time in seconds; where it returns
    true the request is sent again."""

    def __init__(self, request: bytes, ended: Callable[[int, float], bool]) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received = 0
        self._request = request
        self._ended = ended
        self._buffer = b""
        self._began = 0.0
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.send()

    def send(self) -> None:
        """Send the request."""
        self._buffer, self._began = b"", time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self._buffer += data
        if complete(self._buffer):
            status = int(self._buffer[9:12])
            if self._ended(status, time.perf_counter() - self._began):
                self.send()
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def complete(answer: bytes) -> bool:
    """Whether this is all of a response, which says its length or comes in chunks."""
    head, found, body = answer.partition(HEAD_END)
    if not found:
        return False
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(body) >= int(value)
    return answer.endswith(CHUNKS_END)


class Answers:
    """What some callers were answered: seconds of each answer, how many were refused, and seconds to the last one."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.refused = 0
        self.lasted = 0.0

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.lasted


async def call(port: int, request: bytes, connections: int, seconds: float) -> Answers:
    """Send the request on so many connections, each again when it was answered, for so long; what is open then counts
    too, with the time it takes.

    Raises:
        RuntimeError: a connection broke off, or nothing was answered.
    """
    found, loop = Answers(), asyncio.get_running_loop()
    began = time.perf_counter()

    def ended(status: int, took: float) -> bool:
        found.lasted = time.perf_counter() - began
        if status == 200:
            found.seconds.append(took)
        else:
            found.refused += 1
        return found.lasted < seconds

    callers = [
        (await loop.create_connection(lambda: Caller(request, ended), "127.0.0.1", port))[1] for _ in range(connections)
    ]
    await asyncio.wait_for(asyncio.gather(*(each.closed for each in callers)), seconds + WITHIN_S)
    if not found.seconds:
        raise RuntimeError(f"nothing was answered in {seconds:g} s; {found.refused} requests were refused")
    return found
