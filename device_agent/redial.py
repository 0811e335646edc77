"""Keeping one outgoing connection: dial, serve, and dial again with jitter when it ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from wire.backoff import delay_s
from wire.errors import REFUSALS, ConnectionFailed

log = structlog.get_logger()

STEADY_AFTER_S = 2.0
"""A connection that lasted this long was a good one: after it the first wait is short again. No longer than this, for a
server that is restarted now and then must be back as a standby before the next one goes."""


async def stay_connected(peer: str, url: Callable[[], str], connection: Callable[[], Awaitable[None]]) -> None:
    """Run ``connection`` again and again, for ever; it ends by raising ``ConnectionFailed``. ``url``: what it dialled.

    A refusal (wrong model, wrong credential) is an error in the log, a loss a warning; both are tried again, since
    the other side may be mended at any time.
    """
    loop = asyncio.get_running_loop()
    attempt = 0
    while True:
        began = loop.time()
        try:
            await connection()
        except ConnectionFailed as failure:
            say = log.error if failure.code in REFUSALS else log.warning
            say(f"no {peer}", url=url(), code=failure.code.value, why=failure.message)
        attempt = 0 if loop.time() - began > STEADY_AFTER_S else attempt + 1
        await asyncio.sleep(delay_s(attempt, random.random()))
