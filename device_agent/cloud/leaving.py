"""Leaving a cloud server that drains: how many sessions are on their way elsewhere at a time."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from device_agent.cloud.link import CloudLink

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
    share = min(1.0, elapsed_s / (MOVED_BY * within_s)) if within_s > 0 else 1.0
    return max(LEAST_AT_ONCE, math.ceil(share * sessions))


async def leave(link: CloudLink) -> None:
    """Have the sessions of a cloud server that drains go on elsewhere, while it still answers those that have not yet,
    until none is left or it is gone."""
    clock = asyncio.get_running_loop().time
    began = clock()
    while sessions := link.sessions:
        left = at_once(len(sessions), clock() - began, link.drains_within_s)
        for session in sessions:
            if left and session.moves():
                left -= 1
        await asyncio.sleep(MOVE_EVERY_S)
