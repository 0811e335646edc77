"""Where the members of a group meet: one process listens, the others dial it and prove that they know the secret.

    async with listening("10.0.0.1", 8002, secret) as rendezvous:
        group = rendezvous.open(epoch=1, plans={1: b"…", 2: b"…"})
        group.board.get("ready/1", within_s=60)  # on a thread

A group lives as long as all of its members do: the first that is gone ends it, for everybody at once, and its owner
opens the next. Whoever connects and says nothing, or the wrong thing, costs a place on the doorstep and nothing more.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import structlog
from websockets.asyncio.server import ServerConnection, serve

from peers.board import Board
from peers.secret import challenge, check_member, check_secret, link_key, welcome
from wire.connection import Role
from wire.crowd import Crowd, party_of
from wire.errors import Code, ConnectionFailed
from wire.limits import HELLO_WITHIN_S, MESSAGE_BYTES, PEER_LINK
from wire.peer_messages import PeerHello, PeerPost
from wire.stream import Stream, running
from wire.transports import LibraryTransport

MAX_GREETING: Final = 64
"""Sockets that have not proved anything yet; members do so within a round trip or two."""

MAX_GREETING_OF_ADDRESS: Final = 32
"""Of those, from one address, behind which several members may be."""

log = structlog.get_logger()

_UNHEARD = logging.getLogger("peers.visitors")
"""Strangers could fill the log with what the library says of each of them."""
_UNHEARD.disabled = True


class Group:
    """One life of a group, as its host has it. Everything but ``board`` belongs on the event loop.

    Attributes:
        board: what members tell each other.
        ended: why, once it has.
    """

    def __init__(self, epoch: int, plans: Mapping[int, bytes], key: bytes, names: Mapping[int, str]) -> None:
        self.epoch = epoch
        self.names = names
        self.board = Board(self._tell, key)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._plans = dict(plans)
        self._members: dict[int, Stream] = {}
        self._posts: list[PeerPost] = []

    @property
    def size(self) -> int:
        """Members, the host included, which has rank 0."""
        return len(self._plans) + 1

    @property
    def missing(self) -> list[int]:
        """Ranks that nobody has taken yet."""
        return [rank for rank in self._plans if rank not in self._members]

    def plan(self, rank: int) -> bytes:
        """What the member of this rank shall do."""
        return self._plans[rank]

    def end(self, why: str) -> None:
        """End it for everybody. Only the first call counts."""
        self.board.lose(why)
        if not self.ended.done():
            self.ended.set_result(why)
        for stream in self._members.values():
            stream.fail(ConnectionFailed(Code.UPSTREAM_LOST, why))

    def take(self, rank: int, stream: Stream) -> None:
        """A member has come, and learns what the others have posted."""
        self._members[rank] = stream
        for post in self._posts:
            stream.post(post)

    def heard(self, rank: int, post: PeerPost) -> None:
        """A member has posted something: the others learn it too. Raises ``ValueError`` as ``Board.put`` does."""
        self.board.put(post.key, post.value)
        self._pass_on(post, but=rank)

    def _tell(self, key: str, value: bytes) -> None:
        self._loop.call_soon_threadsafe(self._pass_on, PeerPost(key, value))

    def _pass_on(self, post: PeerPost, but: int = 0) -> None:
        self._posts.append(post)
        for rank, stream in self._members.items():
            if rank != but and stream.failure is None:
                stream.post(post)


class Rendezvous:
    """The listener; made by ``listening``. At most one group is open at a time.

    Attributes:
        address: where it listens, a number and no name.
        port: the port it has.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._group: Group | None = None
        self.crowd: Crowd[ServerConnection] = Crowd(MAX_GREETING, MAX_GREETING_OF_ADDRESS, HELLO_WITHIN_S)
        self.address = ""
        self.port = 0

    def open(self, epoch: int, plans: Mapping[int, bytes], names: Mapping[int, str] | None = None) -> Group:
        """Let members in, to ranks from 1 on, each with its plan. The group before must have ended.

        names: whom the ranks are for, where they are for somebody; nobody else gets them.
        """
        assert self._group is None or self._group.ended.done()
        self._group = Group(epoch, plans, link_key(self._secret, epoch), names or {})
        return self._group

    async def receive(self, websocket: ServerConnection) -> None:
        """One visit, from the websocket's handshake to its end."""
        try:
            async with running(LibraryTransport(websocket), Role.HOST, PEER_LINK) as stream:
                asked = challenge()
                stream.post(asked)
                try:
                    said = (await stream.receive()).message
                finally:
                    self.crowd.leave(websocket)
                assert isinstance(said, PeerHello)
                check_member(self._secret, asked, said)
                group, rank = self._seat(said)
                stream.post(welcome(self._secret, asked, said, rank, group.size, group.epoch, group.plan(rank)))
                group.take(rank, stream)
                await _serve_member(group, rank, said.name, stream)
        except ConnectionFailed as failure:
            if failure.code is Code.UNAUTHORIZED:
                log.warning("a peer was refused", why=failure.message)
        except Exception as error:  # A mistake of ours, of which the library would tell nobody.
            log.error("a peer's visit failed", error=type(error).__name__)

    def _seat(self, said: PeerHello) -> tuple[Group, int]:
        group = self._group
        if group is None or group.ended.done():
            raise ConnectionFailed(Code.OVERLOADED, "no group is being formed", retry_after_s=1.0)
        free = [rank for rank in group.missing if group.names.get(rank, said.name) == said.name]
        if said.seat not in (0, *free) or not free:
            raise ConnectionFailed(
                Code.OVERLOADED, "all places of this group are taken, or are for others", retry_after_s=1.0
            )
        # Who is made for one seat has it; others take the last, so that they are not in its way.
        return group, said.seat or free[-1]


async def _serve_member(group: Group, rank: int, name: str, stream: Stream) -> None:
    why = "it has left"
    try:
        while True:
            post = (await stream.receive()).message
            assert isinstance(post, PeerPost)
            group.heard(rank, post)
    except (ConnectionFailed, ValueError) as error:
        why = str(error)
    finally:
        group.end(f"member {rank} ({name}) is gone: {why}")


class _Visitor(ServerConnection):
    """A socket among those who have not said who they are: it loses its place before it keeps others out."""

    crowd: Crowd[ServerConnection]
    """All of them, of one rendezvous; given by a class of its own."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        party = party_of(str(address[0])) if address else ""
        for silent in self.crowd.enter(self, party, asyncio.get_running_loop().time()) or ():
            silent.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.leave(self)
        super().connection_lost(exc)


@asynccontextmanager
async def listening(host: str, port: int, secret: str) -> AsyncIterator[Rendezvous]:
    """A rendezvous at an address, whose group ends with the block. ``port`` 0: any that is free.

    Raises:
        ValueError: the secret is too short, or the address is a wildcard, which is no place that members could reach.
        OSError: the address cannot be bound.
    """
    check_secret(secret)
    rendezvous = Rendezvous(secret)
    async with serve(
        rendezvous.receive,
        _listened_at(host),
        port,
        create_connection=type("_OfThis", (_Visitor,), {"crowd": rendezvous.crowd}),
        max_size=MESSAGE_BYTES,
        max_queue=4,
        compression=None,
        open_timeout=HELLO_WITHIN_S,
        ping_interval=None,  # The protocol has heartbeats of its own.
        close_timeout=1.0,
        server_header=None,
        logger=_UNHEARD,
    ) as server:
        rendezvous.address, rendezvous.port = next(iter(server.sockets)).getsockname()[:2]
        try:
            yield rendezvous
        finally:
            if rendezvous._group is not None:
                rendezvous._group.end("the host has stopped")


def _listened_at(host: str) -> str:
    try:
        wild = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        wild = not host
    if wild:
        raise ValueError(f"members cannot reach {host!r}: name an address of this machine")
    return host
