"""Waiting for something for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Found = TypeVar("Found")


async def within(work: Awaitable[Found], within_s: float) -> Found:
    """What ``work`` gives, or raises, in so many seconds. Raises ``asyncio.TimeoutError`` behind them, and ends it.

    ``asyncio.wait_for`` forgets, before Python 3.12, a cancellation that comes together with the end of the work.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=within_s)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # Marks it as seen.
