"""Visits to portals whose address is a hint: anybody may have said it, and anybody may listen there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

import structlog

from peers.membership import Unproved
from wire.errors import Code, ConnectionFailed

MOST_USELESS: Final = 64
"""Addresses that are remembered: who makes up more than so many is not told from the portal any more."""

Where = Callable[[Collection[str]], Awaitable[str]]
"""Finds the portal's address: another than these, where somebody says another."""

log = structlog.get_logger()


def hinted(
    where: Where, visit: Callable[[Callable[[], None], str], Awaitable[None]]
) -> Callable[[Callable[[], None]], Awaitable[None]]:
    """Visits to wherever the portal seems to be.

    One that ends without a place is made elsewhere the next time, where another address is known; and who has proved
    nothing cannot send this member away for good.

    Args:
        visit: a visit to an address, as ``peers.staying`` wants one.
    """
    useless: dict[str, None] = {}
    said = ""

    async def somewhere(welcomed: Callable[[], None]) -> None:
        nonlocal said
        join = await where(useless)
        if join in useless or len(useless) >= MOST_USELESS:  # All have been tried, and may have changed.
            useless.clear()
        useless[join] = None

        def placed() -> None:
            useless.pop(join, None)
            welcomed()

        try:
            await visit(placed, join)
        except Unproved as failure:
            if said != (said := failure.message):
                log.warning("no portal that knows this group's key there; looking on", address=join, why=said)
            raise ConnectionFailed(Code.LOST, failure.message) from failure

    return somewhere
