"""Links are opened between members, and with nobody else."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from peers_together import KEY, LOOPBACK, boards_of, together

from peers.board import Board, PeerLost
from peers.greeting import DIALLED_BYTES, PeerDoor
from peers.opening import open_links
from peers.secret import NONCE_BYTES, link_key
from wire.errors import ConnectionFailed


def test_a_proof_is_for_one_socket_and_one_way() -> None:
    """Whatever is changed of what was said, or heard elsewhere and said again, or sent back: it proves nothing."""
    dialler, listener = PeerDoor(KEY, 3, 2, 4), PeerDoor(KEY, 3, 1, 4)
    asked, nonce = secrets.token_bytes(NONCE_BYTES), secrets.token_bytes(NONCE_BYTES)
    said = dialler.dialled(1, asked, nonce)
    rank, answer = listener.check_dialled(asked, said)
    dialler.check_listener(1, asked, nonce, answer)
    assert rank == 2
    for at in range(DIALLED_BYTES):
        with pytest.raises(ConnectionFailed):
            listener.check_dialled(asked, said[:at] + bytes([said[at] ^ 1]) + said[at + 1 :])
    with pytest.raises(ConnectionFailed):
        listener.check_dialled(secrets.token_bytes(NONCE_BYTES), said)
    for wrong in (answer[::-1], said[-len(answer) :]):
        with pytest.raises(ConnectionFailed):
            dialler.check_listener(1, asked, nonce, wrong)
    with pytest.raises(ConnectionFailed):
        dialler.check_listener(0, asked, nonce, answer)


@pytest.mark.parametrize(
    "dialler",
    [
        PeerDoor(b"another key, as long", 3, 2, 4),
        PeerDoor(KEY, 4, 2, 4),
        PeerDoor(KEY, 3, 0, 4),
        PeerDoor(KEY, 3, 1, 4),
        PeerDoor(KEY, 3, 4, 5),
    ],
    ids=["key", "epoch", "lower rank", "own rank", "no rank"],
)
def test_who_has_no_business_here_is_refused(dialler: PeerDoor) -> None:
    """Another key, another epoch, or a rank that does not dial this one."""
    asked = secrets.token_bytes(NONCE_BYTES)
    with pytest.raises(ConnectionFailed):
        PeerDoor(KEY, 3, 1, 4).check_dialled(asked, dialler.dialled(1, asked, secrets.token_bytes(NONCE_BYTES)))


def test_each_life_of_a_group_has_its_own_key() -> None:
    """Nothing that was proved in one epoch, or under one secret, helps in another."""
    assert len({link_key("a secret of this test", 1), link_key("a secret of this test", 2), link_key("x" * 20, 1)}) == 3


def test_strangers_neither_get_in_nor_keep_members_out() -> None:
    """Sockets that are silent, hang up, talk rubbish or guess: members find each other all the same."""
    first, second = boards_of(2)
    door = PeerDoor(KEY, 0, 0, 2)
    with ExitStack() as stack:
        listening = threading.Thread(target=lambda: found.update(open_links(first, door, LOOPBACK)))
        found: dict[int, socket.socket] = {}
        listening.start()
        port = int(second.get("link/0/0", 10).split()[1])
        for said in (b"", b"x" * 7, b"GET / HTTP/1.1\r\n\r\n" * 20, bytes(DIALLED_BYTES)):
            for _ in range(40):
                stranger = stack.enter_context(socket.create_connection((LOOPBACK, port)))
                with suppress(OSError):  # Its place may have gone to a later one already.
                    stranger.sendall(said)
        guess = stack.enter_context(socket.create_connection((LOOPBACK, port)))
        asked = guess.recv(NONCE_BYTES)
        guess.sendall(replace(door, key=b"guessed", rank=1).dialled(0, asked, bytes(NONCE_BYTES)))
        guess.settimeout(10)
        with suppress(ConnectionError):
            assert guess.recv(1) == b""
        assert not found
        links = open_links(second, PeerDoor(KEY, 0, 1, 2), LOOPBACK)
        listening.join(20)
        for mine, other in ((found[1], links[0]), (links[0], found[1])):
            mine.sendall(b"hello")
            assert other.recv(5) == b"hello"
        for each in (*found.values(), *links.values()):
            each.close()


def test_who_listens_without_the_secret_is_left() -> None:
    """A member says nothing more to a listener that cannot prove that it belongs to the group."""
    with socket.create_server((LOOPBACK, 0)) as impostor:
        board = Board(lambda key, value: None, KEY)
        board.put("link/0/0", f"{LOOPBACK} {impostor.getsockname()[1]}".encode())

        def answer() -> None:
            with impostor.accept()[0] as came:
                came.sendall(bytes(NONCE_BYTES))
                came.recv(DIALLED_BYTES)
                came.sendall(bytes(32))

        def dial() -> None:
            with pytest.raises(PeerLost, match="does not know the secret") as lost:
                open_links(board, PeerDoor(KEY, 0, 1, 2), LOOPBACK)
            assert lost.value.rank == 0

        together([answer, dial])


def test_a_member_that_does_not_come_is_named() -> None:
    """Whether it should have dialled or listened, the wait ends."""
    for rank, missing in ((0, 1), (1, 0)):
        board = Board(lambda key, value: None, KEY)
        with pytest.raises(PeerLost, match="in time") as lost:
            open_links(board, PeerDoor(KEY, 0, rank, 2), LOOPBACK, within_s=0.3)
        assert lost.value.rank == missing


@pytest.mark.parametrize(
    "said", [b"", b"\xff 1", b"127.0.0.1", b"127.0.0.1 1 2", b"127.0.0.1 many", b"127.0.0.1 99999"]
)
def test_a_member_that_says_no_address_is_named(said: bytes) -> None:
    """It is as good as gone, and no mistake of this one's."""
    board = Board(lambda key, value: None, KEY)
    board.put("link/0/0", said)
    with pytest.raises(PeerLost, match="no link to member 0") as lost:
        open_links(board, PeerDoor(KEY, 0, 1, 2), LOOPBACK)
    assert lost.value.rank == 0


def test_who_cannot_reach_another_is_named_itself() -> None:
    """Both are there, and the host of the group is not who could be done without; who dials came later."""
    with socket.create_server((LOOPBACK, 0)) as gone:
        port = gone.getsockname()[1]
    board = Board(lambda key, value: None, KEY)
    board.put("link/0/0", f"{LOOPBACK} {port}".encode())
    with pytest.raises(PeerLost, match="no link to member 0") as lost:
        open_links(board, PeerDoor(KEY, 0, 1, 2), LOOPBACK)
    assert lost.value.rank == 1


def test_a_moment_without_files_keeps_no_member_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who dials then is taken in as soon as there are some again."""
    accept, refused = socket.socket.accept, [OSError(errno.EMFILE, "too many open files")]

    def scarce(listener: socket.socket) -> tuple[socket.socket, Any]:
        if refused:
            raise refused.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", scarce)
    boards = boards_of(2)
    links = together([partial(open_links, boards[rank], PeerDoor(KEY, 0, rank, 2), LOOPBACK, 5.0) for rank in range(2)])
    assert not refused and [list(each) for each in links] == [[1], [0]]
    for each in links:
        for connection in each.values():
            connection.close()
