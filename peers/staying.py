"""How a member stays one: it visits the host, and when that is over it comes again, a little later each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import random

import structlog

from wire.backoff import delay_s
from wire.errors import REFUSALS, ConnectionFailed

log = structlog.get_logger()


async def stay(
    visit: Callable[[Callable[[], None]], Awaitable[None]],
    *,
    again: bool = True,
    slowest: int = 16,
    ends: tuple[type[ConnectionFailed], ...] = (),
) -> None:
    """Visit, and visit again.

    Args:
        visit: one visit to its end; calls what it is given once it has a place, from when on it is not late any more.
        again: whether there is another visit.
        slowest: the delay grows as far as that of this attempt, see ``delay_s``.
        ends: failures behind which another visit would not help, beside those whose codes are refusals.

    Raises ``ConnectionFailed`` where another visit would not help, or none is wanted.
    """
    attempt = 0

    def welcomed() -> None:
        nonlocal attempt
        attempt = 0

    while True:
        try:
            await visit(welcomed)
        except ConnectionFailed as failure:
            if not again or failure.code in REFUSALS or isinstance(failure, ends):
                raise
            log.info("no place in the group, dialling again", why=failure.message)
        await asyncio.sleep(delay_s(min(attempt, slowest), random()))
        attempt += 1
