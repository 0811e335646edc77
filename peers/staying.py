"""How a member stays one: it visits the host, and when that is over it comes again, a little later each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import random

import structlog

from peers.membership import Unproved
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
    attempt, ever = 0, False

    def welcomed() -> None:
        nonlocal attempt, ever
        attempt, ever = 0, True

    while True:
        try:
            await visit(welcomed)
        except ConnectionFailed as failure:
            # Once there was a place, whoever else listens there now, and has proved nothing, ends nobody's stay.
            refused = failure.code in REFUSALS and not (ever and isinstance(failure, Unproved))
            if not again or refused or isinstance(failure, ends):
                raise
            log.info("no place in the group, dialling again", why=failure.message)
        await asyncio.sleep(delay_s(min(attempt, slowest), random()))
        attempt += 1
