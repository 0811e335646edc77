"""Where the members of a group meet: one process listens, the others dial it and prove that they know the secret.

    async with listening("10.0.0.1", 8002, secret) as rendezvous:
        group = rendezvous.open(epoch=1, plans={1: b"…", 2: b"…"})
        group.board.get("ready/1", within_s=60)  # on a thread

A group lives as long as all of its members do: the first that is gone ends it, for everybody at once, and its owner
opens the next. Who has no place in it is a guest that waits, so that the owner knows who is there. Whoever connects and
says nothing, or the wrong thing, costs a place on the doorstep and nothing more.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final

import structlog
from websockets.asyncio.server import ServerConnection, serve

from peers.group import Group, Guest
from peers.secret import challenge, check_member, check_secret, here, link_key
from tls.contexts import Tls
from wire.connection import Role
from wire.crowd import Crowd, party_of
from wire.errors import Code, ConnectionFailed
from wire.limits import HELLO_WITHIN_S, MESSAGE_BYTES, PEER_LINK
from wire.peer_messages import PeerHello, PeerNote, PeerOver, PeerPost
from wire.stream import Stream, running
from wire.transports import LibraryTransport

MAX_GREETING: Final = 64
"""Sockets that have not proved anything yet; members do so within a round trip or two."""

MAX_GREETING_OF_ADDRESS: Final = 32
"""Of those, from one address, behind which several members may be."""

MAX_GUESTS: Final = 128
"""Who has proved to know the secret, and is in the group or waits."""

QUIET_S: Final = 5.0
"""After one refusal was told of no other of its kind is for so long."""

MAX_NOTES: Final = 64
"""Of one guest, which nobody has read yet."""

_TOLD: Final = frozenset({Code.UNAUTHORIZED, Code.NAME_TAKEN, Code.UNEXPECTED_MESSAGE, Code.TOO_LARGE})
"""Refusals that somebody should look after."""

log = structlog.get_logger()

_UNHEARD = logging.getLogger("peers.visitors")
"""Strangers could fill the log with what the library says of each of them."""
_UNHEARD.disabled = True


class Rendezvous:
    """The listener; made by ``listening``. At most one group is open at a time. Belongs on the event loop.

    Attributes:
        address: where it listens, a number and no name.
        port: the port it has.
        guests: who is there, in the order in which they came: in the group, or waiting for the next.
        changed: set whenever somebody has come, gone, become free or sent a note; cleared by who looks.
    """

    def __init__(self, secret: str, distinct: bool = False, tls: Tls | None = None) -> None:
        self._secret, self._distinct, self._tls = secret, distinct, tls
        self._group: Group | None = None
        self._refusals = _Refusals("a peer was refused")
        self.crowd: Crowd[ServerConnection] = Crowd(MAX_GREETING, MAX_GREETING_OF_ADDRESS, HELLO_WITHIN_S)
        self.address = ""
        self.port = 0
        self.guests: list[Guest] = []
        self.changed = asyncio.Event()

    def open(self, epoch: int, plans: Mapping[int, bytes], names: Mapping[int, str] | None = None) -> Group:
        """Let members in, to ranks from 1 on, each with its plan. The group before must have ended.

        names: whom the ranks are for, where they are for somebody; nobody else gets them.
        """
        assert self._group is None or self._group.ended.done()
        self._group = Group(epoch, plans, link_key(self._secret, epoch), names or {}, self._tls)
        for guest in self.guests:
            self._seat(guest)
        return self._group

    async def receive(self, websocket: ServerConnection) -> None:
        """One visit, from the websocket's handshake to its end."""
        told = False
        try:
            async with running(LibraryTransport(websocket), Role.HOST, PEER_LINK) as stream:
                asked = challenge()
                stream.post(asked)
                said = (await stream.receive()).message
                assert isinstance(said, PeerHello)
                try:
                    check_member(self._secret, asked, said)
                    self.crowd.leave(websocket)  # Else its place is free once its socket is gone.
                    self._check_room(said.name)
                except ConnectionFailed as failure:
                    told = True
                    self._refusals.say(failure.message)
                    raise
                stream.post(here(self._secret, asked, said))
                await self._serve(Guest(self._secret, asked, said, stream), stream)
        except ConnectionFailed as failure:
            if failure.code in _TOLD and not told:  # By its code alone: the words may be the peer's own.
                self._refusals.say(failure.code.value)
        except Exception as error:  # A mistake of ours, of which the library would tell nobody.
            log.error("a peer's visit failed", error=type(error).__name__)

    def _check_room(self, name: str) -> None:
        if self._distinct and any(guest.name == name and not guest.gone for guest in self.guests):
            raise ConnectionFailed(
                Code.NAME_TAKEN, f"another member is called {name!r}: give each a name of its own", retry_after_s=1.0
            )
        if len(self.guests) >= MAX_GUESTS:
            raise ConnectionFailed(Code.OVERLOADED, f"{MAX_GUESTS} members are here already", retry_after_s=1.0)

    def _seat(self, guest: Guest) -> None:
        rank = None if self._group is None or guest.place or guest.gone else self._group.free_for(guest)
        if self._group is not None and rank is not None:
            self._group.enter(rank, guest)

    async def _serve(self, guest: Guest, stream: Stream) -> None:
        self.guests.append(guest)
        self._seat(guest)
        self.changed.set()
        why = "it has left"
        try:
            while True:
                self._heard(guest, (await stream.receive()).message)
        except ConnectionFailed as failure:
            why = failure.message
            raise
        except ValueError as error:
            why = str(error)
            raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, f"{guest.name}: {error}") from None
        finally:
            self.guests.remove(guest)
            self.changed.set()
            if guest.place is not None:
                group, rank = guest.place
                group.end(f"member {rank} ({guest.name}) is gone: {why}", rank)

    def _heard(self, guest: Guest, message: object) -> None:
        if isinstance(message, PeerNote):
            if len(guest.notes) >= MAX_NOTES:
                raise ConnectionFailed(Code.TOO_LARGE, f"{guest.name} says more than anybody reads")
            guest.notes.append(message.value)
            self.changed.set()
        elif guest.place is None:
            # Said of a place that it never had, or has given back.
            raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, f"{guest.name} has no place in the group")
        elif isinstance(message, PeerPost) and message.epoch == guest.place[0].epoch:
            guest.place[0].heard(guest.place[1], message)
        elif isinstance(message, PeerOver) and message.epoch == guest.place[0].epoch:
            (group, rank), guest.place = guest.place, None
            group.leaves(rank, message)
            self._seat(guest)
            self.changed.set()


class _Refusals:
    """Says why peers are refused, now and then: strangers may cause it at will."""

    def __init__(self, event: str) -> None:
        self._event, self._quiet_until = event, 0.0

    def say(self, why: str) -> None:
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + QUIET_S
            log.warning(self._event, why=why)


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
async def listening(
    host: str, port: int, secret: str, *, distinct: bool = False, tls: Tls | None = None
) -> AsyncIterator[Rendezvous]:
    """A rendezvous at an address, whose group ends with the block.

    Args:
        port: 0: any that is free.
        distinct: whether each guest must have a name of its own.
        tls: with a certificate, and CAs of which each guest must have one too; None: all is plain.

    Raises:
        ValueError: the secret is too short, or the address is a wildcard, which is no place that members could reach.
        OSError: the address cannot be bound.
    """
    check_secret(secret)
    rendezvous = Rendezvous(secret, distinct, tls)
    refused = _Refusals("no TLS with who dials").say
    secure = None if tls is None else tls.listening(refused=refused, insists=True)
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
        ssl=secure,
        ssl_handshake_timeout=None if secure is None else HELLO_WITHIN_S,
    ) as server:
        rendezvous.address, rendezvous.port = next(iter(server.sockets)).getsockname()[:2]
        try:
            yield rendezvous
        finally:
            if rendezvous._group is not None:
                rendezvous._group.end("the host has stopped")
            for guest in rendezvous.guests:
                guest.dismiss(Code.UPSTREAM_LOST, "the host has stopped")


def _listened_at(host: str) -> str:
    try:
        wild = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        wild = not host
    if wild:
        raise ValueError(f"members cannot reach {host!r}: name an address of this machine")
    return host
