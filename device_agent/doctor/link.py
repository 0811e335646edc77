"""A connection that is dialled to be looked at, and how long its round trips are."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from service.doctor.finding import Finding, sentence
from service.doctor.place import Place
from service.tls_settings import TlsSettings
from tls.contexts import Tls
from wire.connection import Role
from wire.dialled import dialled
from wire.errors import Code, ConnectionFailed
from wire.limits import LinkLimits
from wire.stream import Stream, running
from wire.transports import LibraryTransport

PINGS: Final = 10
PINGS_WITHIN_S: Final = 3.0
"""Fewer where they take long: who has said no hello is not kept waiting for ever."""

LONG_S: Final = 0.15
"""From here on each round is felt: a reader takes in a word in about twice as long."""

NAME: Final = "doctor"
"""What this is called where it is asked; nobody's device."""


@asynccontextmanager
async def looked_into(
    url: str, role: Role, limits: LinkLimits, context: ssl.SSLContext | None
) -> AsyncIterator[tuple[Stream, list[float]]]:
    """A connection, and the round trips of some pings in seconds; closed in order on the way out.

    Raises:
        ConnectionFailed: nobody answers, or the connection ends.
    """
    websocket = await dialled(url, context)
    try:
        times = await round_trips(websocket)
    except BaseException:
        websocket.transport.abort()
        raise
    async with running(LibraryTransport(websocket), role, limits) as stream:
        yield stream, times


async def round_trips(websocket: ClientConnection) -> list[float]:
    """What pings of the websocket take, in seconds; fewer than ``PINGS`` where they take long or are not answered."""
    clock = asyncio.get_running_loop().time
    times: list[float] = []
    end = clock() + PINGS_WITHIN_S
    while len(times) <= PINGS and clock() < end:
        began = clock()
        try:
            answered = await websocket.ping()
            await asyncio.wait_for(answered, max(0.001, end - began))
        except (ConnectionClosed, TimeoutError, asyncio.TimeoutError):
            break
        times.append(clock() - began)
    return times[1:] or times  # The first finds both sides cold.


def round_trip(about: str, times: Sequence[float]) -> Finding:
    """What is to be said of round trips. Pure."""
    if not times:
        seen = f"not measured: no ping was answered within {PINGS_WITHIN_S:g} s"
        return Finding("round trip", "warn", seen, "Look at what is between: it may hold up control frames.", about)
    middle, least, most = median(times), min(times), max(times)
    seen = f"{middle * 1e3:.1f} ms ({least * 1e3:.1f} to {most * 1e3:.1f}, {len(times)} pings)"
    figures = {"median_s": middle, "least_s": least, "most_s": most, "pings": len(times)}
    if middle < LONG_S:
        return Finding("round trip", "ok", seen, about=about, figures=figures)
    todo = (
        "Choose a nearer server where there is one; each round of tokens waits for it, which drafts (--draft) make up."
    )
    return Finding("round trip", "warn", seen, todo, about, figures)


def unlike(about: str, failure: ConnectionFailed, wanted: str) -> Finding:
    """Why there was no hello, where that is nobody's token or model. Pure."""
    if failure.code is Code.VERSION_MISMATCH:
        return Finding("release", "fail", failure.message, "Install the same release on both machines.", about)
    if failure.code in (Code.DRAINING, Code.OVERLOADED):
        todo = "Wait, or dial another one; who is refused for this tries again by itself."
        return Finding("hello", "warn", f"not asked: {failure.message}", todo, about)
    if failure.code in (Code.UNEXPECTED_MESSAGE, Code.BAD_FRAME, Code.TIMEOUT):
        seen = f"what answers does not speak as a {wanted} does ({failure.code.value})"
        return Finding("hello", "fail", seen, f"Dial the {wanted}: look at its address and port.", about)
    seen, _, todo = failure.message.partition("; ")
    return Finding("hello", "fail", seen, sentence(todo) or f"Look at the log of the {wanted}.", about)


def dialling(config: TlsSettings, place: Place) -> ssl.SSLContext | None:
    """What the other side's certificate is checked by; None without TLS. Raises ``BadTlsFile``."""
    return (config.tls() or Tls()).dialling() if place.secure else None
