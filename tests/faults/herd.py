"""Very many devices of one process that stay connected to a server as devices do, and do nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from quick_server import eventually

from device_agent.redial import stay_connected
from wire.connection import Role
from wire.limits import LinkLimits
from wire.messages import AnyMessage
from wire.stream import dial


@dataclass
class Herd:
    """What has become of them.

    Attributes:
        size: how many there are.
        connected: those that are welcome now. came: when each came last, in the order in which they came, by the
            loop's clock. refused: how often one was sent away or cut off before it was welcome.
    """

    size: int
    connected: set[int] = field(default_factory=set)
    came: list[float] = field(default_factory=list)
    refused: int = 0

    async def all_gone(self) -> None:
        """Wait until all have noticed that their server is gone."""
        await eventually(lambda: not self.connected)

    async def all_there(self) -> list[float]:
        """Wait until all are welcome; when each came since this was asked last."""
        await eventually(lambda: len(self.connected) == self.size)
        came, self.came = self.came, []
        return came


@asynccontextmanager
async def herd(url: str, role: Role, limits: LinkLimits, hellos: list[AnyMessage]) -> AsyncIterator[Herd]:
    """One device for each hello."""
    found, clock = Herd(len(hellos)), asyncio.get_running_loop().time

    async def once(number: int) -> None:
        welcome = False
        try:
            async with dial(url, role, limits) as stream:
                stream.post(hellos[number])
                await stream.receive()
                welcome = True
                found.connected.add(number)
                found.came.append(clock())
                while True:
                    await stream.receive()
        finally:
            found.connected.discard(number)
            found.refused += not welcome

    async def device(number: int) -> None:
        await stay_connected("server", lambda: url, lambda: once(number))

    tasks = [asyncio.create_task(device(number)) for number in range(len(hellos))]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
