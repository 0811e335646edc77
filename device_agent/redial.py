"""Keeping one outgoing connection: dial, serve, and dial again with jitter when it ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from service.sparing_log import SparingLog
from wire.backoff import delay_s
from wire.errors import REFUSALS, Code, ConnectionFailed

log = structlog.get_logger()
often = SparingLog()

STEADY_AFTER_S = 2.0
"""A connection that lasted this long was a good one: after it the first wait is short again. No longer than this, for a
server that is restarted now and then must be back as a standby before the next one goes."""

WHILE_IT_DRAINS = 2
"""The waits of this attempt, a second at most, and no longer ones while a server says that it is stopping: soon another
one will answer there, or the same one started again."""


async def stay_connected(peer: str, url: Callable[[], str], connection: Callable[[], Awaitable[None]]) -> None:
    """Run ``connection`` again and again, for ever; it ends by raising ``ConnectionFailed``. ``url``: what it dialled.

    A refusal (wrong model, wrong credential) is an error in the log, a loss a warning; both are tried again, since
    the other side may be mended at any time.
    """
    loop = asyncio.get_running_loop()
    attempt = 0
    while True:
        began = loop.time()
        drains = False
        try:
            await connection()
        except ConnectionFailed as failure:
            drains = failure.code is Code.DRAINING
            say = often.info if drains else log.error if failure.code in REFUSALS else log.warning
            say(f"no {peer}", url=url(), code=failure.code.value, why=failure.message)
        attempt = 0 if loop.time() - began > STEADY_AFTER_S else attempt + 1
        if drains:
            attempt = min(attempt, WHILE_IT_DRAINS)
        await asyncio.sleep(delay_s(attempt, random.random()))
