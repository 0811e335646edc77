"""The connections to all cloud servers of a model, in the order in which they were named."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from device_agent.cloud.keeping import keep
from device_agent.cloud.link import CloudLink
from device_agent.sharing.events import set_within
from tls.contexts import Tls
from wire.errors import Code, SessionFailed
from wire.session_messages import DeviceHello


class Clouds:
    """A connection is kept to each.

    Args:
        urls, hello, may_pack, tls: see ``RemoteSubmodel``.
    """

    def __init__(self, urls: Sequence[str], hello: DeviceHello, may_pack: bool, tls: Tls | None = None) -> None:
        self._tls = tls
        self._told = asyncio.Event()
        self._news = asyncio.Event()
        self.links = [CloudLink(url, hello, self._told, may_pack) for url in urls]

    @property
    def ready(self) -> bool:
        """Whether sessions can be opened somewhere now."""
        return any(link.ready for link in self.links)

    @property
    def preferred(self) -> CloudLink:
        """Where a session would be opened now; when nobody is ready, who comes nearest to that."""
        return max(self.links, key=lambda link: (link.ready, link.stream is not None, link.welcome is not None))

    async def news(self, within_s: float | None = None) -> None:
        """Wait until a connection comes, goes or begins to drain, or for ``within_s`` seconds."""
        await set_within(self._news, within_s)

    async def run(self) -> None:
        """Stay connected to all, for ever."""
        tasks = [
            asyncio.create_task(work) for work in (self._spread(), *(keep(link, self._tls) for link in self.links))
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _spread(self) -> None:
        """What one link tells is news for all who wait, and for sessions whose own link drains: now they may have
        somewhere to go."""
        while True:
            await self._told.wait()
            self._told.clear()
            for link in self.links:
                if link.draining and self.ready:
                    for session in link.sessions:
                        session.ended(SessionFailed(Code.DRAINING, "the cloud server is stopping"))
            self._news.set()
            self._news = asyncio.Event()
