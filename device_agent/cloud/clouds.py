"""The connections to all cloud servers of a model, in the order in which they were named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from device_agent.cloud.link import CloudLink
from wire.errors import Code, SessionFailed
from wire.session_messages import DeviceHello


class Clouds:
    """A connection is kept to each.

    Args:
        urls, hello, may_pack: see ``RemoteSubmodel``.
        changed: called when a connection comes or goes.
    """

    def __init__(self, urls: Sequence[str], hello: DeviceHello, changed: Callable[[], None], may_pack: bool) -> None:
        self.links = [CloudLink(url, hello, self._link_changed, may_pack) for url in urls]
        self._changed = changed
        self._news = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether sessions can be opened somewhere now."""
        return any(link.ready for link in self.links)

    @property
    def preferred(self) -> CloudLink:
        """Where a session would be opened now; when nobody is ready, who comes nearest to that."""
        return max(self.links, key=lambda link: (link.ready, link.stream is not None, link.welcome is not None))

    async def news(self, within_s: float) -> None:
        """Wait until a connection comes or goes, or for ``within_s`` seconds."""
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), within_s)

    async def run(self) -> None:
        """Stay connected to all, for ever."""
        tasks = [asyncio.create_task(link.run()) for link in self.links]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _link_changed(self) -> None:
        # Whichever link it was: a session that had nowhere to go when its own began to drain may have it now.
        for draining in self.links:
            if draining.draining and self.ready:
                for session in draining.sessions:
                    session.ended(SessionFailed(Code.DRAINING, "the cloud server is stopping"))
        self._news.set()
        self._news = asyncio.Event()
        self._changed()
