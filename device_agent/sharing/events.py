"""Waiting for an event for a while."""

from __future__ import annotations

import asyncio


async def set_within(event: asyncio.Event, within_s: float | None) -> bool:
    """Wait until ``event`` is set, for so many seconds at most, if there is a limit; whether it is.

    ``asyncio.wait_for`` forgets, before Python 3.12, a cancellation that comes together with the event: whoever waits
    in a loop would never end.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiting], timeout=None if within_s is None else max(0.0, within_s))
    finally:
        waiting.cancel()
    return event.is_set()
