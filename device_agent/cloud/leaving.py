"""Leaving a cloud server that drains: how many sessions are on their way elsewhere at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from device_agent.cloud.link import CloudLink
from wire.errors import Code, ConnectionFailed

LEAST_AT_ONCE: Final = 2
"""So many keep the other cloud server at work; more hold up those that are answered there already, or still here where
both are one machine."""

MOVED_BY: Final = 0.5
"""After this share of the time that it drains for all are on their way: who has not moved in the end sends all rows at
once, together with all others."""

MOVE_EVERY_S: Final = 0.01
"""How often is looked whether they can go on there."""


def at_once(sessions: int, elapsed_s: float, within_s: float) -> int:
    """How many of the ``sessions`` that are left may be on their way after ``elapsed_s`` of ``within_s`` seconds."""
    all_by_s = MOVED_BY * within_s  # Whatever a cloud server says: no number, or one that half of is nought.
    share = elapsed_s / all_by_s if elapsed_s < all_by_s else 1.0
    return max(LEAST_AT_ONCE, math.ceil(share * sessions))


async def leave(link: CloudLink, replaced: Callable[[], bool]) -> None:
    """Have the sessions of a cloud server that drains go on elsewhere, while it still answers those that have not yet,
    until it is gone, or none is left and another link has taken this one's place: then the connection is ended, or a
    cloud server that drains and stays would collect them.

    replaced: whether another link has.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    while link.stream is not None and ((sessions := link.sessions) or not replaced()):
        left = at_once(len(sessions), clock() - began, link.drains_within_s)
        for session in sessions:
            if left and session.moves():
                left -= 1
        await asyncio.sleep(MOVE_EVERY_S)
    if link.stream is not None:
        link.stream.fail(ConnectionFailed(Code.DRAINING, "all sessions have gone elsewhere"))
