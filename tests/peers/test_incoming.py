"""What is read of a link's bytes, by whoever waits and by the link's own thread."""

from __future__ import annotations

import socket
import threading

from peers.frames import Kind, PeerFrame, pack
from peers.inbox import EARLY_BYTES, Expected
from peers.incoming import Incoming

EPOCH = 3


def test_a_payload_behind_a_parked_header_is_no_frame() -> None:
    """A frame that is too long to be kept waits for who asks for it, its first bytes read ahead; who needs nothing more
    meanwhile leaves them alone."""
    here, there = socket.socketpair()
    ended: list[str] = []
    here.settimeout(None)
    incoming = Incoming(here, 10.0, EPOCH, lambda frame: None, ended.append)
    data = b"\xff" * (EARLY_BYTES + 1)
    there.setblocking(False)
    there.send(pack(PeerFrame(Kind.SEND, EPOCH, 5, 0, len(data))) + data[:1000])
    assert not incoming.read_until(lambda: False), "it is parked"
    assert incoming.read_until(lambda: True) and ended == []
    room, came = bytearray(len(data)), []
    incoming.ask(EPOCH, 5, Expected(memoryview(room), lambda: came.append(True)))
    there.setblocking(True)
    sending = threading.Thread(target=there.sendall, args=(data[1000:],))
    sending.start()
    assert incoming.read_until(lambda: bool(came)) and ended == [] and room == data
    sending.join()
    incoming.abandon()
    here.close()
    there.close()


def test_what_is_waited_for_may_come_behind_a_long_frame_that_nobody_has_asked_for() -> None:
    """Whether that has been parked before or comes afterwards, where the link was told so; both get their bytes."""
    here, there = socket.socketpair()
    ended: list[str] = []
    here.settimeout(None)
    incoming = Incoming(here, 10.0, EPOCH, lambda frame: None, ended.append)
    incoming.keep_ahead(EPOCH, 2 * EARLY_BYTES)
    data, came = bytes(range(256)) * (EARLY_BYTES // 128), []
    answer = pack(PeerFrame(Kind.SEND, EPOCH, 7, 0, 6)) + b"answer"
    sending = threading.Thread(
        target=there.sendall, args=(pack(PeerFrame(Kind.SEND, EPOCH, 5, 0, len(data))) + data + answer,)
    )
    sending.start()
    assert not incoming.read_until(lambda: False), "it is parked: nothing is expected"
    room, late = bytearray(6), bytearray(len(data))
    incoming.ask(EPOCH, 7, Expected(memoryview(room), lambda: came.append("answer")))
    assert incoming.read_until(lambda: bool(came)) and room == b"answer" and not ended
    incoming.ask(EPOCH, 5, Expected(memoryview(late), lambda: came.append("long")))
    assert came == ["answer", "long"] and late == data
    sending.join()
    incoming.abandon()
    here.close()
    there.close()
