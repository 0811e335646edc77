"""A member's end of its group: it dials the host, proves that it knows the secret, and learns its place.

async with join("10.0.0.1:8002", secret, name="kitchen") as membership:
    membership.rank, membership.plan, membership.board
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from peers.board import Board
from peers.secret import check_host, check_secret, hello, link_key
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.limits import HELLO_WITHIN_S, PEER_LINK
from wire.peer_messages import PeerChallenge, PeerPost, PeerWelcome
from wire.stream import Stream, dial


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

    def __init__(self, place: PeerWelcome, key: bytes, address: str, stream: Stream) -> None:
        self.rank, self.size, self.epoch, self.plan = place.rank, place.size, place.epoch, place.plan
        self.address = address
        self.board = Board(self._tell, key)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._stream = stream

    async def listen(self) -> None:
        """Put what others post on the board, until the group ends."""
        try:
            while True:
                post = (await self._stream.receive()).message
                if not isinstance(post, PeerPost):
                    raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, "a member has its place already")
                self.board.put(post.key, post.value)
        except (ConnectionFailed, ValueError) as error:
            self.end(str(error))

    def end(self, why: str) -> None:
        """The group has ended for this member. Only the first call counts."""
        self.board.lose(why)
        if not self.ended.done():
            self.ended.set_result(why)

    def _tell(self, key: str, value: bytes) -> None:
        self._loop.call_soon_threadsafe(self._post, PeerPost(key, value))

    def _post(self, post: PeerPost) -> None:
        with suppress(ConnectionFailed):  # Then the group has ended, and says so itself.
            self._stream.post(post)


@asynccontextmanager
async def join(where: str, secret: str, name: str, seat: int = 0) -> AsyncIterator[Membership]:
    """Be a member of the group whose host listens at ``where``, "HOST:PORT"; the block's end is the membership's.

    Args:
        seat: the rank that this member is made for; 0: any.

    Raises:
        ConnectionFailed: nobody listens there, or does not know the secret, or has no place now.
        ValueError: the secret is too short, or ``where`` is no address.
    """
    check_secret(secret)
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{where!r} is not HOST:PORT")
    async with dial(f"ws://{where}/", Role.MEMBER, PEER_LINK) as stream:
        asked = (await stream.receive()).message
        assert isinstance(asked, PeerChallenge)
        said = hello(secret, name, seat, asked)
        stream.post(said)
        try:
            place = (await asyncio.wait_for(stream.receive(), HELLO_WITHIN_S)).message
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise ConnectionFailed(Code.TIMEOUT, "the host gives no place") from error
        if not isinstance(place, PeerWelcome):
            raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, "something came before the place of this member")
        check_host(secret, asked, said, place)
        address = await asyncio.to_thread(_own_address, host.strip("[]"), int(port))
        membership = Membership(place, link_key(secret, place.epoch), address, stream)
        listening = asyncio.create_task(membership.listen())
        try:
            yield membership
        finally:
            membership.end("this member has left")
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


def _own_address(host: str, port: int) -> str:
    """This machine's address on the way to a host, as its routes have it; nothing is sent."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
