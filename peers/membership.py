"""A member's end of its group: it dials the host, proves that it knows the secret, and gets a place when there is one.

async with attend("10.0.0.1:8002", secret, name="kitchen") as attendance:
    while True:
        membership = await attendance.place()
        membership.rank, membership.plan, membership.board
        membership.leave("done")  # and wait for the next place
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from peers.board import Board
from peers.secret import check_here, check_host, check_secret, hello, link_key
from tls.contexts import Tls
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.limits import HELLO_WITHIN_S, MAX_TEXT, PEER_LINK
from wire.peer_messages import PeerChallenge, PeerHello, PeerNote, PeerOver, PeerPost, PeerWelcome
from wire.stream import Stream, dial
from wire.within import within


class Unproved(ConnectionFailed):
    """Whoever listens there has not proved that it knows the secret, whatever else it has said."""


class Membership:
    """A place in a group, until the group ends. Everything but ``board`` belongs on the event loop.

    Attributes:
        rank: this member's number; the host has 0.
        size: members, the host included.
        epoch: which life of the group this is.
        plan: what the host wants of this member.
        address: this machine's own, as the host reaches it: a number and no name.
        board: what members tell each other.
        ended: why, once the group has.
    """

    def __init__(self, place: PeerWelcome, key: bytes, address: str, stream: Stream, tls: Tls | None) -> None:
        self.rank, self.size, self.epoch, self.plan = place.rank, place.size, place.epoch, place.plan
        self.address = address
        self.board = Board(self._tell, key, tls)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._left = False

    def end(self, why: str) -> None:
        """The group has ended for this member. Only the first call counts."""
        self.board.lose(why)
        if not self.ended.done():
            self.ended.set_result(why)

    def leave(self, why: str, blamed: int = 0, code: str = "") -> None:
        """This member does nothing for the group any more, which ends by that if it has not yet; it is free for its
        next place. Only the first call counts.

        blamed, code: see ``PeerOver``.
        """
        if not self._left:
            self._left = True
            self._post(PeerOver(self.epoch, why[:MAX_TEXT], blamed, code))
        self.end(why)

    def _tell(self, key: str, value: bytes) -> None:
        self._loop.call_soon_threadsafe(self._post, PeerPost(key, value, self.epoch))

    def _post(self, message: PeerPost | PeerOver) -> None:
        if isinstance(message, PeerOver) or not self._left:
            with suppress(ConnectionFailed):  # Then the group has ended, and says so itself.
                self._stream.post(message)


class Attendance:
    """A visit to the host of a group, made by ``attend``. Belongs on the event loop.

    Attributes:
        noted: called with each note of the host.
    """

    def __init__(
        self,
        secret: str,
        asked: PeerChallenge,
        said: PeerHello,
        address: str,
        stream: Stream,
        tls: Tls | None = None,
    ) -> None:
        self.noted: Callable[[bytes], object] = lambda value: None
        self._secret, self._asked, self._said = secret, asked, said
        self._address, self._stream, self._tls = address, stream, tls
        self._place: Membership | None = None
        self._places: asyncio.Queue[Membership | ConnectionFailed] = asyncio.Queue()

    async def place(self) -> Membership:
        """The next place in the group. Raises ``ConnectionFailed`` where the host is gone, or does not know the
        secret."""
        found = await self._places.get()
        if isinstance(found, ConnectionFailed):
            self._places.put_nowait(found)
            raise found
        return found

    def note(self, value: bytes) -> None:
        """Tell the host alone."""
        with suppress(ConnectionFailed):  # Whoever waits for a place learns it.
            self._stream.post(PeerNote(value))

    def give_up(self, failure: ConnectionFailed) -> None:
        """Whoever waits for a place is told this instead."""
        self._places.put_nowait(failure)

    def end(self, why: str) -> None:
        """The visit is over."""
        if self._place is not None:
            self._place.end(why)

    async def listen(self) -> None:
        """Take what the host says, until the visit ends."""
        try:
            while True:
                self._heard((await self._stream.receive()).message)
        except (ConnectionFailed, ValueError) as error:
            failed = error if isinstance(error, ConnectionFailed) else ConnectionFailed(Code.BAD_FRAME, str(error))
            self._stream.fail(failed)
            self.end(str(error))
            self._places.put_nowait(failed)

    def _heard(self, message: object) -> None:
        place = self._place
        if isinstance(message, PeerWelcome):
            check_host(self._secret, self._asked, self._said, message)
            if place is not None and (message.epoch <= place.epoch or not place.ended.done()):
                raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, "a member has its place already")
            key = link_key(self._secret, message.epoch)
            self._place = Membership(message, key, self._address, self._stream, self._tls)
            self._places.put_nowait(self._place)
        elif isinstance(message, PeerNote):
            self.noted(message.value)
        elif isinstance(message, (PeerPost, PeerOver)) and place is None:
            raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, "something came before the place of this member")
        elif isinstance(message, PeerPost) and place is not None and message.epoch == place.epoch:
            place.board.put(message.key, message.value)
        elif isinstance(message, PeerOver) and place is not None and message.epoch == place.epoch:
            place.end(message.why)


@asynccontextmanager
async def attend(
    where: str, secret: str, name: str, seat: int = 0, tls: Tls | None = None
) -> AsyncIterator[Attendance]:
    """Be there for the group whose host listens at ``where``, "HOST:PORT"; the block's end is the visit's.

    Args:
        seat: the rank that this member is made for; 0: any.
        tls: with a certificate, which the host wants then; None: the host is dialled without.

    Raises:
        Unproved: nobody listens there, or whoever does has not proved that it knows the secret.
        ConnectionFailed: it has, and the connection ends. Whether it takes this member in is found out when ``place``
            is asked.
        ValueError: the secret is too short, or ``where`` is no address.
    """
    check_secret(secret)
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{where!r} is not HOST:PORT")
    url = f"{'ws' if tls is None else 'wss'}://{where}/"
    async with AsyncExitStack() as stack:
        try:
            stream = await stack.enter_async_context(
                dial(url, Role.MEMBER, PEER_LINK, None if tls is None else tls.dialling())
            )
            asked, said = await _introduced(stream, secret, name, seat)
        except ConnectionFailed as failure:
            raise Unproved(failure.code, failure.message) from failure
        address = await asyncio.to_thread(_own_address, host.strip("[]"), int(port))
        attendance = Attendance(secret, asked, said, address, stream, tls)
        listening = asyncio.create_task(attendance.listen())
        try:
            yield attendance
        finally:
            attendance.end("this member has left")
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _introduced(stream: Stream, secret: str, name: str, seat: int) -> tuple[PeerChallenge, PeerHello]:
    """Say who this is, and hear the host's proof. Raises ``ConnectionFailed``."""
    asked = (await stream.receive()).message
    assert isinstance(asked, PeerChallenge)
    said = hello(secret, name, seat, asked)
    stream.post(said)
    try:
        first = await within(stream.receive(), HELLO_WITHIN_S)
    except asyncio.TimeoutError:
        raise ConnectionFailed(Code.LOST, "whoever listens there says nothing") from None
    check_here(secret, asked, said, first.message)
    return asked, said


@asynccontextmanager
async def join(where: str, secret: str, name: str, seat: int = 0, tls: Tls | None = None) -> AsyncIterator[Membership]:
    """Be a member of one group, as ``attend``, once it has a place; the block's end is the membership's."""
    async with attend(where, secret, name, seat, tls) as attendance:
        yield await attendance.place()


def _own_address(host: str, port: int) -> str:
    """This machine's address on the way to a host, as its routes have it; nothing is sent. Raises ``ConnectionFailed``
    where there is no way any more."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConnectionFailed(Code.LOST, f"there is no way to {host} any more ({type(error).__name__})") from error
