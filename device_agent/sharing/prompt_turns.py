"""Long prompts of a device go to the cloud by turns of tenants.

The cloud runs a device's prompts one after the other, in the order of their coming, and is not told whose they are. So
were all that one tenant asks for sent at once, another's next would wait for all of them. How many a tenant may have on
their way is decided as for permits of answers, counted in rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from device_agent.sharing.permit_queue import NOBODY
from device_agent.sharing.permits import Permits

PROMPTS: Final = 4
"""Long prompts that are on their way at once. A tenant that is alone has half: one in the cloud, and the next on its
way there."""

LONG_ROWS: Final = 512
"""Rows from which on a prompt counts as a whole one; of shorter ones there are more."""

SHORT_ROWS: Final = 32
"""A prompt of at most so many waits for nobody: in the cloud it goes ahead of long ones."""


class PromptTurns:
    """The prompts of one device that are on their way."""

    def __init__(self) -> None:
        self._permits = Permits(PROMPTS * LONG_ROWS, per_free=1)

    @asynccontextmanager
    async def turn(self, tenant: str, rows: int) -> AsyncIterator[None]:
        """While a prompt of ``rows`` rows is on its way; begins when it may be. Where there are no keys, at once."""
        if tenant == NOBODY or rows <= SHORT_ROWS:
            yield
            return
        async with self._permits.one(tenant, min(rows, LONG_ROWS)):
            yield
