"""The cloud's layers as a submodel: the same verbs, carried by the wire to one of several cloud servers.

A connection is kept to each of them. Sessions go to the first that is ready, in the order in which they were named, and
move to another by themselves when theirs goes away.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from device_agent.cloud_link import CloudLink
from device_agent.recovery import Recovery
from device_agent.remote_session import RemoteSession
from split_model.submodel import Pace
from wire.errors import Code, SessionFailed
from wire.messages import CloudWelcome, DeviceHello


class RemoteSubmodel:
    """The middle layers in the cloud.

    Args:
        urls: the cloud servers, each ``ws://host:port``; the first are preferred.
        hello: who this device is and what it expects; a cloud server refuses a mismatch.
        reply_within_s: how long one answer may take before its session goes elsewhere, and how long a session may wait
            for room where cloud servers are there and full.
        recover_within_s: how long a session may be without a cloud server before it fails.
        changed: called when a connection comes or goes.
        may_pack: whether rows may be packed for the way, see ``CloudLink.packs``.
    """

    def __init__(
        self,
        urls: Sequence[str],
        hello: DeviceHello,
        reply_within_s: float,
        recover_within_s: float = 30.0,
        changed: Callable[[], None] = lambda: None,
        may_pack: bool = True,
    ) -> None:
        self.links = [CloudLink(url, hello, self._link_changed, may_pack) for url in urls]
        self.reply_within_s = reply_within_s
        self._recover_within_s = recover_within_s
        self._changed = changed
        self._news = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether sessions can be opened now."""
        return any(link.ready for link in self.links)

    @property
    def max_rows(self) -> int:
        """Most rows in one forward, as the cloud said."""
        return self._preferred.max_rows

    @property
    def max_positions(self) -> int:
        """Most positions of one session, as the cloud said; unknown before it did, and ``open`` then says why."""
        welcome = self._preferred.welcome
        return welcome.max_positions if welcome is not None else sys.maxsize

    @property
    def chunk(self) -> int | None:
        """Rows of a chunk as the cloud advises them now."""
        return self._preferred.chunk

    @property
    def pace(self) -> Pace:
        """What is known of the cloud server where a session would be opened now."""
        link = self._preferred
        return Pace(link.step_s, link.monitor.up_bytes_s, link.monitor.down_bytes_s)

    def drafts_in(self, seconds: float) -> None:
        """See ``Submodel.drafts_in``; the cloud servers are told when it has changed."""
        for link in self.links:
            link.draft_us = round(seconds * 1e6)

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> RemoteSession:
        """Begin a session. Raises ``SessionFailed`` when no cloud server can be reached or all are stopping."""
        link = self._preferred
        if link.stream is None or link.stream.failure is not None:
            why = f": {link.refusal.message}" if link.refusal is not None else ", the device keeps trying"
            raise SessionFailed(Code.UPSTREAM_LOST, f"the cloud server cannot be reached{why}", retry_after_s=2.0)
        if link.draining:
            raise SessionFailed(Code.DRAINING, "the cloud server is stopping", retry_after_s=2.0)
        assert isinstance(link.welcome, CloudWelcome)
        if positions > link.welcome.max_positions:
            raise SessionFailed(
                Code.TOKEN_LIMIT, f"the cloud server allows {link.welcome.max_positions} positions, not {positions}"
            )
        recovery = Recovery(self._recover_within_s, self.reply_within_s)
        return RemoteSession(self, link, recovery, positions, prompt, expected)

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

    @property
    def _preferred(self) -> CloudLink:
        """Where a session would be opened now; when nobody is ready, who comes nearest to that."""
        return max(self.links, key=lambda link: (link.ready, link.stream is not None, link.welcome is not None))

    def _link_changed(self) -> None:
        # Whichever link it was: a session that had nowhere to go when its own began to drain may have it now.
        for draining in self.links:
            if draining.draining and self.connected:
                for session in draining.sessions:
                    session.ended(SessionFailed(Code.DRAINING, "the cloud server is stopping"))
        self._news.set()
        self._news = asyncio.Event()
        self._changed()
