"""A socket to every other member: addresses go over the board, and both ends of each prove who they are.

Everyone listens, at an address of its own and on any port, dials who has a lower rank, and takes in who has a higher
one. Strangers who come meanwhile cost a thread for some seconds; when all members are there nobody listens any more.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Final

import structlog

from peers.board import Board, PeerLost
from peers.greeting import DIALLED_BYTES, PeerDoor
from peers.secret import NONCE_BYTES, PROOF_BYTES
from peers.secure import SecureSocket, digest_of
from tls.contexts import Between
from tls.why import why
from wire.crowd import Crowd, party_of
from wire.errors import Code, ConnectionFailed
from wire.limits import HELLO_WITHIN_S

OPEN_WITHIN_S: Final = 15.0
"""Time from the moment the first member wants its links until all have theirs."""

LOOK_EVERY_S: Final = 0.2

MAX_GREETING: Final = 128
"""Sockets that have not proved anything yet, of all and of one address."""

log = structlog.get_logger()


def open_links(board: Board, door: PeerDoor, address: str, within_s: float = OPEN_WITHIN_S) -> dict[int, socket.socket]:
    """A socket to each other member, by its rank; they block, and have no deadline.

    Args:
        board: of the group. Where links are opened twice on one board, the second must be of another epoch.
        address: of this machine, as the others reach it.

    Raises:
        PeerLost: a member is gone, has not come in time, or is not who it should be.
        OSError: the address is not this machine's.
    """
    if door.size == 1:
        return {}  # Whose address may be gone with its network, and who goes on alone.
    deadline = monotonic() + within_s
    with ExitStack() as stack:
        found: dict[int, socket.socket] = {}
        stack.callback(_close_all, found)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = stack.enter_context(socket.create_server((address, 0), family=family, backlog=128))
        between = None if board.tls is None else board.tls.between()
        # The certificate goes along: a member is who the board says, and not just anybody whom the CA knows.
        shown = "" if between is None else digest_of(between.own)
        board.post(f"link/{door.epoch}/{door.rank}", f"{address} {listener.getsockname()[1]} {shown}".strip().encode())
        came = _Arrivals(board, door, listener, deadline, between)
        stack.callback(came.close)
        for rank in range(door.rank):
            found[rank] = _dial(board, door, rank, deadline, between)
        for _ in range(door.rank + 1, door.size):
            rank, connection = came.next(lambda: board.has(()), deadline, found)
            found[rank] = connection
        came.close()
        listener.close()
        stack.pop_all()
    for connection in found.values():
        connection.settimeout(None)
    return found


def _close_all(connections: dict[int, socket.socket]) -> None:
    for each in connections.values():
        each.close()


def _dial(board: Board, door: PeerDoor, rank: int, deadline: float, between: Between | None) -> socket.socket:
    try:
        said = board.get(f"link/{door.epoch}/{rank}", deadline - monotonic())
    except PeerLost as error:
        raise PeerLost(board.lost or f"member {rank} has not come in time", rank) from error
    connection = None
    try:
        address, port, *shown = said.decode().split()
        if not 0 < int(port) < 2**16 or (shown and between is None):
            raise ValueError("what it has said is no address")
        connection = socket.create_connection((address, int(port)), timeout=_left(deadline))
        if between is not None:
            # The dialler is TLS's server here: with a certificate that is good for dialling only nobody gets a link.
            with connection as plain:
                connection = _secured(plain, between.listens, deadline, server=True)
            _check(connection, shown)
        asked, nonce = receive_exactly(connection, NONCE_BYTES, deadline), secrets.token_bytes(NONCE_BYTES)
        connection.sendall(door.dialled(rank, asked, nonce))
        door.check_listener(rank, asked, nonce, receive_exactly(connection, PROOF_BYTES, deadline))
    except (OSError, ValueError, OverflowError, ConnectionFailed) as error:
        if connection is not None:
            connection.close()
        reason = why(error, dialled=True) if isinstance(error, ssl.SSLError) else str(error)
        # Where no way leads there, both are alive, as the rendezvous knows, and who dials came later: the others go on
        # without that one. It could not go on without the host of the group, whom newcomers dial too.
        unreached = connection is None and isinstance(error, OSError) and not isinstance(error, socket.gaierror)
        raise PeerLost(f"no link to member {rank}: {reason}", door.rank if unreached else rank) from error
    return connection


def _secured(plain: socket.socket, context: ssl.SSLContext, deadline: float, *, server: bool) -> SecureSocket:
    """Behind TLS, over ``plain``, which the caller closes; to shut that down ends this too. Raises ``OSError``."""
    secure = SecureSocket(plain, context, server=server)
    try:
        secure.handshake(deadline)
    except BaseException:
        secure.close()
        raise
    return secure


def _check(connection: socket.socket, shown: Sequence[str]) -> None:
    """Raises ``ConnectionFailed`` where that is not whose certificate the board says. Plain ones have none."""
    if isinstance(connection, SecureSocket) and [connection.shown] != [*shown]:
        raise ConnectionFailed(Code.UNAUTHORIZED, "it shows another certificate than it has said it would")


class _Arrivals:
    """Who dials, each greeted on a thread of its own."""

    def __init__(
        self, board: Board, door: PeerDoor, listener: socket.socket, deadline: float, between: Between | None
    ) -> None:
        self._board, self._between = board, between
        self._door = door
        self._listener = listener
        self._deadline = deadline
        self._greeted: SimpleQueue[tuple[int, socket.socket]] = SimpleQueue()
        self._crowd: Crowd[socket.socket] = Crowd(MAX_GREETING, MAX_GREETING, HELLO_WITHIN_S)
        self._lock = threading.Lock()
        self._over = False
        listener.settimeout(LOOK_EVERY_S)
        self._thread = threading.Thread(target=self._accept, name="links-accept", daemon=True)
        self._thread.start()

    def next(
        self, alive: Callable[[], object], deadline: float, known: dict[int, socket.socket]
    ) -> tuple[int, socket.socket]:
        """A member who is not known yet; ``alive`` raises what ends the wait. Raises ``PeerLost``."""
        while True:
            alive()
            with suppress(Empty):
                rank, connection = self._greeted.get(timeout=LOOK_EVERY_S)
                if rank not in known:
                    return rank, connection
                connection.close()
            if monotonic() > deadline:
                missing = [rank for rank in range(self._door.rank + 1, self._door.size) if rank not in known]
                raise PeerLost(f"members {missing} have not dialled in time", missing[0])

    def close(self) -> None:
        """Nobody is let in any more; who was let in and not taken goes."""
        self._over = True
        with suppress(OSError):  # Wakes who accepts, where the system lets it.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        with suppress(Empty):
            while True:
                self._greeted.get_nowait()[1].close()

    def _accept(self) -> None:
        while not self._over:
            try:
                connection, where = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                sleep(0 if self._over else LOOK_EVERY_S)  # Closed; or out of files, which may be for a moment.
                continue
            with self._lock:
                silent = self._crowd.enter(connection, party_of(str(where[0])), monotonic()) or ()
            for each in silent:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._greet, args=(connection,), name="links-greet", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        deadline = min(monotonic() + HELLO_WITHIN_S, self._deadline)
        visitor = connection
        try:
            if self._between is not None:
                connection = _secured(connection, self._between.dials, deadline, server=False)
            asked = secrets.token_bytes(NONCE_BYTES)
            connection.settimeout(_left(deadline))
            connection.sendall(asked)
            rank, proof = self._door.check_dialled(asked, receive_exactly(connection, DIALLED_BYTES, deadline))
            if self._between is not None:
                said = self._board.get(f"link/{self._door.epoch}/{rank}", _left(deadline))
                _check(connection, said.decode().split()[2:])
            connection.sendall(proof)
        except (OSError, ConnectionFailed, PeerLost, ValueError) as error:
            connection.close()
            log.debug("a visitor is no member", why=str(error))
            return
        finally:
            with self._lock:
                self._crowd.leave(visitor)
            if connection is not visitor:
                visitor.close()
        self._greeted.put((rank, connection))
        if self._over:
            self.close()


def receive_exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    """So many bytes. Raises ``OSError`` where they do not come before ``deadline``, by ``time.monotonic``."""
    data = b""
    while len(data) < count:
        connection.settimeout(_left(deadline))
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("it hung up")
        data += more
    return data


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("not in time")
    return left
