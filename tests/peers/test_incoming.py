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
