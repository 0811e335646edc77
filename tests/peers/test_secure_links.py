"""Links behind TLS: the same bits as without, however much goes which way, and between known certificates only."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
import torch
from certificates import shown
from peers_together import KEY, LOOPBACK, boards_of, fabrics, together

from peers.board import PeerLost
from peers.collectives import Collectives
from peers.fabric import Fabric
from peers.greeting import PeerDoor
from peers.opening import open_links
from peers.secure import SecureSocket, digest_of
from service.certs import Authority

SIZE = 3
LENGTHS = [1, 24, 4096, 16384, 16385, 70_000, 3_000_000]
"""Of float32: less than a record, a record's bounds, more than the kernel takes."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for each member, and one of another CA."""
    folder = tmp_path_factory.mktemp("lab")
    authority = Authority(folder)
    for rank in range(SIZE):
        authority.issue([f"m{rank}"], "member")
    authority.issue(["kitchen"], "device")
    Authority(folder / "other").issue(["m1"], "member")
    return folder


@pytest.fixture(scope="module")
def members(lab: Path) -> Iterator[list[Fabric]]:
    """A group behind TLS."""
    with fabrics(SIZE, [shown(lab, f"m{rank}") for rank in range(SIZE)]) as made:
        assert all(type(link._socket) is SecureSocket for link in made[0]._links.values())
        yield made


def test_sums_and_gathers(members: list[Fabric]) -> None:
    """Of all lengths, one way and the other."""
    groups = [Collectives(each) for each in members]
    for length in LENGTHS:
        parts = [torch.randn(length, generator=torch.Generator().manual_seed(rank)) for rank in range(SIZE)]
        mine = [each.clone() for each in parts]

        def sum_up(rank: int, mine: list[torch.Tensor] = mine) -> torch.Tensor:
            return groups[rank].sum(mine[rank])

        sums = together([partial(sum_up, rank) for rank in range(SIZE)])
        assert all(torch.equal(each, sums[0]) for each in sums)
        assert torch.allclose(sums[0], parts[0] + parts[1] + parts[2], atol=1e-5)


def test_both_ways_at_once(members: list[Fabric]) -> None:
    """Everybody sends to everybody, long and short, before anybody receives: nobody waits for the other for ever."""
    groups = [Collectives(each) for each in members]
    chosen = random.Random(7)
    lengths = [chosen.choice(LENGTHS) for _ in range(12)]

    def talk(rank: int) -> bool:
        others = [other for other in range(SIZE) if other != rank]
        sent = {
            (other, tag): groups[rank].send(torch.full((length,), 10.0 * rank + tag), other, tag)
            for tag, length in enumerate(lengths)
            for other in others
        }
        for other in others:
            for tag, length in enumerate(lengths):
                got = torch.empty(length)
                groups[rank].receive(got, other, tag).wait()
                assert bool((got == 10.0 * other + tag).all())
        for each in sent.values():
            each.wait()
        return True

    assert together([partial(talk, rank) for rank in range(SIZE)], 60.0) == [True] * SIZE


def test_another_epoch(members: list[Fabric]) -> None:
    """The links stay, and hold nothing back."""
    together([partial(each.turn, 3) for each in members])
    groups = [Collectives(each) for each in members]
    found = together([partial(each.sum, torch.ones(5)) for each in groups])
    assert all(torch.equal(each, torch.full((5,), 3.0)) for each in found)


@pytest.mark.parametrize("liar", ["m2", "other/m1", "plain", "kitchen"])
def test_only_certificates_that_were_said(lab: Path, liar: str) -> None:
    """Somebody with the group's key and a certificate that is another member's, another CA's, none, or a device's that
    never listens, gets no link."""
    boards = boards_of(2, tls=[shown(lab, "m0"), shown(lab, "m1")])
    where, _, name = liar.rpartition("/")
    boards[1].tls = None if liar == "plain" else shown(lab / where, name, lab / "ca.crt")
    tell, said = boards[1].post, digest_of(shown(lab, liar if liar == "kitchen" else "m1").between().own)

    def post(key: str, value: bytes) -> None:
        tell(key, b" ".join([*value.split()[:2], said.encode()]))

    boards[1].post = post  # type: ignore[method-assign]

    def opened(rank: int) -> str:
        with pytest.raises(PeerLost) as lost:
            open_links(boards[rank], PeerDoor(KEY, 0, rank, 2), LOOPBACK, 2.0)
        return str(lost.value)

    host, _ = together([partial(opened, 0), partial(opened, 1)])
    assert "have not dialled in time" in host


def test_what_the_kernel_does_not_take_is_sent_again(lab: Path) -> None:
    """A socket that never blocks and takes little: all bytes arrive, in order, once."""
    one, other = shown(lab, "m0").between(), shown(lab, "m1").between()
    left, right = socket.socketpair()
    for each in (left, right):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ends = SecureSocket(left, one.dials, server=False), SecureSocket(right, other.listens, server=True)
    with left, right, ends[0], ends[1]:
        deadline = monotonic() + 30
        together([partial(each.handshake, deadline) for each in ends])
        assert ends[0].shown != ends[1].shown
        for each in ends:
            each.setblocking(True)  # As links have them.
        data = random.Random(1).randbytes(700_001)
        blocked = 0

        def send() -> None:
            nonlocal blocked
            rest = memoryview(data)
            while rest:
                try:
                    rest = rest[ends[0].sendmsg([rest[:5], rest[5:]], (), socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    blocked += 1
                    threading.Event().wait(0.001)

        def receive() -> bytes:
            got = bytearray()
            while len(got) < len(data):
                got += ends[1].recv(random.Random(len(got)).choice([1, 100, 50_000]))
            return bytes(got)

        assert together([send, receive])[1] == data and blocked and not ends[1].holds()
