"""A member of a fabric that lies, hangs or is late is ended by name, and nobody waits for it."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from liars import Liar, header

from peers.board import PeerLost
from peers.collectives import Collectives
from peers.fabric import EpochOver, Fabric
from peers.frames import Kind, PeerFrame, pack
from peers.inbox import EARLY_BYTES

LIES = {
    "a kind that there is not": header(99, 5, 0, 1, 24),
    "another kind": header(Kind.REDUCE, 5, 0, 1, 24),
    "another tile": header(Kind.GATHER, 5, 0, 2, 24),
    "its own tile's number": header(Kind.GATHER, 5, 0, 0, 24),
    "a shorter payload": header(Kind.GATHER, 5, 0, 1, 23),
    "an endless payload": header(Kind.GATHER, 5, 0, 1, 2**62),
    "a collective far ahead": header(Kind.GATHER, 5, 10**6, 1, 24),
    "a tag that there is not": header(Kind.SEND, 5, 10**6, 0, 24),
    "a payload behind a pulse": header(Kind.PULSE, 5, 0, 0, 24),
    "nothing but the beginning": header(Kind.GATHER, 5, 0, 1, 24)[:7],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_member_that_lies_is_ended_by_name(lied_to: tuple[Fabric, Liar], lie: str) -> None:
    """Whatever field is wrong: the wait ends, nothing is written into the tensor, and nothing more is taken from it."""
    fabric, liar = lied_to
    whole = torch.zeros(2, 6)
    exchange = Collectives(fabric).all_gather(whole, [1, 1])
    liar.connection.sendall(LIES[lie])
    if lie.startswith("nothing"):
        liar.connection.shutdown(socket.SHUT_WR)
    with pytest.raises(PeerLost, match="member 1 is gone") as lost:
        exchange.wait(20)
    assert lost.value.rank == 1 and not whole.any()
    with pytest.raises(PeerLost):
        Collectives(fabric).all_gather(whole, [1, 1])
    liar.connection.settimeout(10)
    while liar.connection.recv(1000):
        pass


def test_frames_of_another_epoch_are_dropped_and_counted(lied_to: tuple[Fabric, Liar]) -> None:
    """Earlier ones and later ones, long ones and short ones, and whatever they say; what is right is taken."""
    fabric, liar = lied_to
    whole = torch.zeros(2, 6)
    exchange = Collectives(fabric).all_gather(whole, [1, 1])
    for epoch, length in ((4, 24), (4, 300_000), (6, 24), (0, 0), (2**32 - 1, 7)):
        liar.say(PeerFrame(Kind.GATHER, epoch, 0, 1, length), bytes(length))
    liar.say(PeerFrame(Kind.GATHER, 5, 0, 1, 24), memory_of(torch.ones(6)))
    exchange.wait(20)
    assert whole[1].tolist() == [1.0] * 6 and fabric.dropped == 5


def memory_of(tensor: torch.Tensor) -> bytes:
    """Its bytes."""
    return bytes(tensor.numpy())


def test_a_new_epoch_ends_what_was_under_way(lied_to: tuple[Fabric, Liar]) -> None:
    """Its waits end on whatever thread, late tiles of it go nowhere, and the links stay."""
    fabric, liar = lied_to
    whole = torch.zeros(2, 6)
    exchange = Collectives(fabric).all_gather(whole, [1, 1])
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(exchange.wait, 20)
        turning = threads.submit(fabric.turn, 6)
        assert liar.hear(Kind.TURN).epoch == 6
        with pytest.raises(EpochOver):
            waiting.result(10)
        assert not turning.done()
        liar.say(PeerFrame(Kind.GATHER, 5, 0, 1, 24), memory_of(torch.ones(6)))
        liar.say(PeerFrame(Kind.TURN, 6))
        turning.result(10)
    again = Collectives(fabric).all_gather(whole, [1, 1])
    liar.say(PeerFrame(Kind.GATHER, 5, 0, 1, 24), memory_of(torch.ones(6)))
    liar.say(PeerFrame(Kind.GATHER, 6, 0, 1, 24), memory_of(torch.full((6,), 2.0)))
    again.wait(20)
    assert whole[1].tolist() == [2.0] * 6 and fabric.epoch == 6 and fabric.dropped == 2
    for wrong in (6, 5, 2**32):
        with pytest.raises(ValueError):
            fabric.turn(wrong)


def test_who_does_not_turn_is_named(lied_to: tuple[Fabric, Liar]) -> None:
    """Within the time for it."""
    fabric, _ = lied_to
    with pytest.raises(PeerLost, match="member 1 has not begun epoch 6"):
        fabric.turn(6, within_s=0.2)


def test_who_takes_too_long_is_named_and_ends_it(lied_to: tuple[Fabric, Liar]) -> None:
    """A member that lives and does not do its part."""
    fabric, _ = lied_to
    exchange = Collectives(fabric).all_gather(torch.zeros(2, 6), [1, 1])
    with pytest.raises(PeerLost, match="member 1 has not done") as lost:
        exchange.wait(0.2)
    assert lost.value.rank == 1 and fabric.failure is not None


def test_who_takes_nothing_is_lost(lied_to: tuple[Fabric, Liar], monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that lives and reads nothing, so that what is sent to it never leaves."""
    monkeypatch.setattr("peers.outgoing.STUCK_S", 0.3)
    fabric, liar = lied_to
    sent = Collectives(fabric).send(torch.zeros(16_000_000), 1, 1)
    with pytest.raises(PeerLost, match=r"it has taken nothing for 0\.3 s") as lost:
        sent.wait(20)
    assert lost.value.rank == 1
    liar.connection.close()


def test_who_sends_what_nobody_asks_for_is_lost(lied_to: tuple[Fabric, Liar], monkeypatch: pytest.MonkeyPatch) -> None:
    """Too much to be kept, under a tag that may still be asked for: it waits in the socket, but not for ever."""
    monkeypatch.setattr("peers.incoming.STUCK_S", 0.3)
    fabric, liar = lied_to
    liar.connection.sendall(pack(PeerFrame(Kind.SEND, 5, 1, 0, EARLY_BYTES + 1)))
    exchange = Collectives(fabric).all_gather(torch.zeros(2, 6), [1, 1])
    with pytest.raises(PeerLost, match=r"nobody has asked for it within 0\.3 s") as lost:
        exchange.wait(20)
    assert lost.value.rank == 1


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_what_is_sent_to_somebody_who_has_left_ends_at_once(lied_to: tuple[Fabric, Liar], before: bool) -> None:
    """Named, whether it was on its way when the member left or is sent behind that; as the part of a collective too."""
    fabric, liar = lied_to
    collectives, began = Collectives(fabric), time.monotonic()
    sent = [collectives.send(torch.zeros(16_000_000), 1, 1)] if before else []
    liar.say(PeerFrame(Kind.LEAVE, 0))
    liar.connection.shutdown(socket.SHUT_WR)
    while fabric.link(1).outgoing._closed is False:
        assert time.monotonic() - began < 20
        time.sleep(0.01)
    if not before:
        sent = [collectives.send(torch.zeros(3), 1, 1), collectives.broadcast(torch.zeros(3), 0)]
    for each in sent:
        with pytest.raises(PeerLost, match="member 1 has left") as lost:
            each.wait(20)
        assert lost.value.rank == 1
    assert time.monotonic() - began < 20 and fabric.failure is None
