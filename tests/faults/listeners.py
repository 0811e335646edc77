"""Everything of Trilby that listens, and how it is spoken to wrongly: by strangers, and by those who were let in."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import httpx
import torch
from faults import corpora
from faults.mutate import mutated
from faults.raw_sockets import BINARY, TEXT, WITHIN_S, Hangs, raw_socket
from faults.shapes import body_of, wanted
from liars import Liar
from peers_together import KEY, LOOPBACK, boards_of, together

from peers.board import PeerLost
from peers.collectives import Collectives
from peers.fabric import Fabric
from peers.frames import Kind, PeerFrame, pack
from peers.greeting import PeerDoor
from peers.opening import open_links
from peers.secret import hello
from wire.connection import Role
from wire.frames import PREFIX, decode, encode, stamp
from wire.limits import PEER_LINK
from wire.peer_messages import PeerChallenge
from wire.session_messages import Open
from wire.stream import dial

BATCH: Final = 20
"""Frames on one connection, at most: the first that is wrong ends it."""

IN_ORDER: Final = 0.8
"""How often a wrong frame has the right number, so that it is looked into."""

TURNS: Final = (("user", "What is 2 + 3?"),)
TOKENS: Final = 8


class Listener(Protocol):
    """One that listens."""

    def attack(self, rng: random.Random) -> int:
        """One connection with wrong frames; how many. Raises AssertionError where it does not hold."""

    def check(self) -> None:
        """A normal request is served. Raises AssertionError."""


def frames_of(rng: random.Random, corpus: Sequence[bytes], first: int) -> list[bytes]:
    """Some wrong ones, most of them numbered as the next on their connection, from ``first`` on."""
    found = []
    for number in range(first, first + rng.randint(1, BATCH)):
        data = bytearray(mutated(rng, corpus))
        if len(data) >= PREFIX.size and rng.random() < IN_ORDER:
            stamp(data, number)
        found.append(bytes(data))
    return found


def check_chat(base: str) -> None:
    """An answer is transformers'."""
    reply = httpx.post(f"{base}/chat/completions", json=body_of(TURNS, TOKENS), timeout=WITHIN_S, trust_env=False)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == wanted(TURNS, TOKENS)


@dataclass(frozen=True)
class DeviceDoor:
    """``/device`` of a gateway or a cloud. ``hellos`` let somebody in, ``opening`` comes behind them; ``base``: the API
    behind it."""

    port: int
    base: str
    hellos: Sequence[bytes]
    opening: Sequence[bytes]
    corpus: Sequence[bytes]

    def attack(self, rng: random.Random) -> int:
        """By a stranger, or behind a right hello."""
        before = [] if rng.random() < 0.4 else [*self.hellos, *self.opening]
        frames = frames_of(rng, self.corpus if before else self.hellos, len(before))
        with raw_socket(self.port, "/device") as websocket:
            if before:  # What comes before the welcome is not looked at.
                websocket.send(self.hellos, last=False)
                websocket.message()
            websocket.send([*before[len(self.hellos) :], *frames])
            websocket.end()
        return len(frames)

    def check(self) -> None:
        """An answer goes through it."""
        check_chat(self.base)


def cloud_door(port: int, base: str) -> DeviceDoor:
    """A cloud's, with a session open."""
    opening = [bytes(encode(Open(1, 50), (), 1))]
    return DeviceDoor(port, base, corpora.device_hellos(), opening, corpora.device_frames())


def gateway_door(port: int, base: str) -> DeviceDoor:
    """A gateway's."""
    return DeviceDoor(port, base, corpora.agent_hellos(), (), corpora.agent_frames())


@dataclass(frozen=True)
class TokenSocket:
    """``/v1/stream`` of a gateway."""

    port: int
    base: str

    def attack(self, rng: random.Random) -> int:
        """Text that is none, JSON that is no request, requests that are nearly right."""
        corpus = corpora.token_messages()
        frames = [mutated(rng, corpus) for _ in range(rng.randint(1, BATCH))]
        with raw_socket(self.port, "/v1/stream") as websocket:
            websocket.send(frames, TEXT if rng.random() < 0.9 else BINARY)
            websocket.end()
        return len(frames)

    def check(self) -> None:
        """The gateway answers."""
        check_chat(self.base)


@dataclass(frozen=True)
class Http:
    """The API of a gateway."""

    port: int
    base: str

    def attack(self, rng: random.Random) -> int:
        """A request that is nearly one; then nothing more comes from this side."""
        data = mutated(rng, corpora.http_requests(self.port))
        with socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S) as connection:
            try:
                with suppress(ConnectionError, BrokenPipeError):
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
            except TimeoutError:
                raise Hangs("neither an answer nor an end") from None
            except OSError:
                return 1
        return 1

    def check(self) -> None:
        """It answers."""
        check_chat(self.base)


@dataclass(frozen=True)
class Rendezvous:
    """Where members of a group, or stages of a cloud, join. ``inside``: who speaks wrongly has proved to belong there;
    what it says goes onto the board."""

    port: int
    secret: str
    inside: bool = False

    def attack(self, rng: random.Random) -> int:
        """By a stranger, or behind a right hello."""
        with raw_socket(self.port, "/") as websocket:
            asked = decode(websocket.message(), PEER_LINK).message
            assert isinstance(asked, PeerChallenge)
            right = bytes(encode(hello(self.secret, f"liar-{rng.randrange(10**9)}", 0, asked)))
            before = [right] if self.inside else []
            frames = frames_of(rng, corpora.peer_frames() if self.inside else [right], len(before))
            websocket.send([*before, *frames])
            websocket.end()
        return len(frames)

    def check(self) -> None:
        """Whoever knows the secret comes in, and stays."""
        asyncio.run(self._visit())

    async def _visit(self) -> None:
        async with dial(f"ws://127.0.0.1:{self.port}/", Role.MEMBER, PEER_LINK) as stream:
            asked = (await asyncio.wait_for(stream.receive(), WITHIN_S)).message
            assert isinstance(asked, PeerChallenge)
            if self.inside:
                stream.post(hello(self.secret, "a visitor", 0, asked))
                await asyncio.sleep(0.2)
                assert stream.failure is None, stream.failure


class FabricLinks:
    """Links between members, of which one lies; in this process."""

    def attack(self, rng: random.Random) -> int:
        """The wait of the member that is lied to ends, by a failure that names the liar or, where what came was right
        after all, by an answer."""
        boards = boards_of(2)
        fabric, links = together(
            [
                lambda: Fabric.open(boards[0], 0, 2, LOOPBACK, epoch=5),
                lambda: open_links(boards[1], PeerDoor(KEY, 5, 1, 2), LOOPBACK),
            ]
        )
        liar = Liar(links[0])
        try:
            exchange = Collectives(fabric).all_gather(torch.zeros(2, 6), [1, 1])
            right = [pack(PeerFrame(kind, 5, 0, 1, 24 if kind < Kind.PULSE else 0)) + bytes(24) for kind in Kind]
            frames = [mutated(rng, right) for _ in range(rng.randint(1, BATCH))]
            with suppress(OSError):
                liar.connection.sendall(b"".join(frames))
                liar.connection.shutdown(socket.SHUT_WR)
            with suppress(PeerLost):
                exchange.wait(WITHIN_S)
            return len(frames)
        finally:
            liar.connection.close()
            fabric.close()

    def check(self) -> None:
        """Honest members gather what they have."""
        boards = boards_of(2)
        made = together([lambda rank=rank: Fabric.open(boards[rank], rank, 2, LOOPBACK) for rank in range(2)])  # type: ignore[misc]
        try:
            wholes = [torch.zeros(2, 3) for _ in made]
            for rank, whole in enumerate(wholes):
                whole[rank] = rank + 1
            waits = [Collectives(fabric).all_gather(whole, [1, 1]) for fabric, whole in zip(made, wholes, strict=True)]
            for each in waits:
                each.wait(WITHIN_S)
            assert all(whole.tolist() == [[1.0] * 3, [2.0] * 3] for whole in wholes)
        finally:
            together([each.close for each in made])


class FabricDoor:
    """Where a member waits for the others to dial it; in this process."""

    def attack(self, rng: random.Random) -> int:
        """Strangers who dial say nearly what a member would, while the member dials too, and comes in."""
        boards = boards_of(2)
        frames = rng.randint(1, BATCH)

        def stranger() -> None:
            _, port, *_ = boards[1].get("link/5/0", WITHIN_S).decode().split()
            for _ in range(frames):
                with suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), timeout=WITHIN_S) as dialled:
                    asked = dialled.recv(32)
                    right = PeerDoor(b"another key", 5, 1, 2).dialled(0, asked, rng.randbytes(32))
                    dialled.sendall(mutated(rng, [right]))

        def member() -> dict[int, socket.socket]:
            stranger()
            return open_links(boards[1], PeerDoor(KEY, 5, 1, 2), LOOPBACK)

        opened = together([lambda: open_links(boards[0], PeerDoor(KEY, 5, 0, 2), LOOPBACK), member])
        for links in opened:
            assert len(links) == 1
            for each in links.values():
                each.close()
        return frames

    def check(self) -> None:
        """Honest members gather what they have."""
        FabricLinks().check()
