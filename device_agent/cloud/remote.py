"""The cloud's layers as a submodel: the same verbs, carried by the wire to one of several cloud servers.

A connection is kept to each of them. Sessions go to the first that is ready, in the order in which they were named, and
move to another by themselves when theirs goes away.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from device_agent.cloud.clouds import Clouds
from device_agent.cloud.recovery import Recovery
from device_agent.cloud.session import RemoteSession
from device_agent.cloud.wires import wire_of
from tls.contexts import Tls
from wire.errors import Code, SessionFailed
from wire.observed_messages import Wire
from wire.session_messages import CloudWelcome, DeviceHello


class RemoteSubmodel:
    """The middle layers in the cloud.

    Args:
        urls: the cloud servers, each ``ws://host:port``; the first are preferred.
        hello: who this device is and what it expects; a cloud server refuses a mismatch.
        reply_within_s: how long one answer may take before its session goes elsewhere, and how long a session may wait
            for room where cloud servers are there and full.
        recover_within_s: how long a session may be without a cloud server before it fails.
        may_pack: whether rows may be packed for the way, see ``LinkPace.packs``.
        tls: of ``wss://``; None: the system's CAs are trusted.
    """

    def __init__(
        self,
        urls: Sequence[str],
        hello: DeviceHello,
        reply_within_s: float,
        recover_within_s: float = 30.0,
        may_pack: bool = True,
        tls: Tls | None = None,
    ) -> None:
        self.clouds = Clouds(urls, hello, may_pack, tls)
        self._reply_within_s = reply_within_s
        self._recover_within_s = recover_within_s

    @property
    def connected(self) -> bool:
        """Whether sessions can be opened now."""
        return self.clouds.ready

    @property
    def max_rows(self) -> int:
        """Most rows in one forward, as the cloud said."""
        return self.clouds.preferred.max_rows

    @property
    def max_positions(self) -> int:
        """Most positions of one session, as the cloud said; unknown before it did, and ``open`` then says why."""
        welcome = self.clouds.preferred.welcome
        return welcome.max_positions if welcome is not None else sys.maxsize

    @property
    def hints(self) -> RemoteSubmodel:
        """The layers run elsewhere."""
        return self

    @property
    def reading(self) -> None:
        """A cloud server has sessions alone."""

    @property
    def chunk(self) -> int | None:
        """Rows of a chunk as the cloud advises them now."""
        return self.clouds.preferred.chunk

    @property
    def first_chunk(self) -> int | None:
        """Most rows of a first chunk as the cloud advises them now."""
        return self.clouds.preferred.first_chunk

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> RemoteSession:
        """Begin a session. Raises ``SessionFailed`` when no cloud server can be reached or all are stopping."""
        link = self.clouds.preferred
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
        recovery = Recovery(self._recover_within_s, self._reply_within_s)
        session = RemoteSession(self.clouds, recovery, positions, prompt, expected)
        session.attach(link)
        return session

    @property
    def restored(self) -> int:
        """How often a session had to begin again, or has moved."""
        return self.clouds.restored

    def wires(self) -> list[Wire]:
        """The connections to all of them, for people."""
        return [wire_of(link) for link in self.clouds.shown]

    def report(self) -> None:
        """There is no group."""

    async def news(self) -> None:
        """Wait until a connection comes, goes or begins to drain."""
        await self.clouds.news()

    async def run(self) -> None:
        """Stay connected to all, for ever."""
        await self.clouds.run()
