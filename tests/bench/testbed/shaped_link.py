"""A link while it is there: two ways, each shaped where it leaves its host, which can be changed and counted."""

from __future__ import annotations

import json
from time import monotonic, sleep

from bench.testbed.iproute import run
from bench.testbed.shaping import HEADER_BYTES, packet_bytes, reshape, route

DRAINED_WITHIN_S = 0.1
"""How long a change to smaller packets waits for the larger ones; a bucket has to hold those that are left."""

LOOK_EVERY_S = 0.002


def counted(namespace: str, device: str) -> tuple[int, int, int, int]:
    """Bytes and packets that left by a device, packets dropped, and packets that wait. Raises NetworkError."""
    shown = run(["tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device])
    bucket = next(each for each in json.loads(shown) if each["kind"] == "tbf")
    return bucket["bytes"], bucket["packets"], bucket["drops"], bucket["qlen"]


class Way:
    """One way: what leaves by a device of a namespace towards a subnet. It is shaped for ``mb_s`` already."""

    def __init__(self, namespace: str, device: str, subnet: str, mb_s: float) -> None:
        self._namespace = namespace
        self._device = device
        self._subnet = subnet
        self._mb_s = mb_s
        self._packet = self._largest = packet_bytes(mb_s)

    def set(self, mb_s: float) -> None:
        """Another bandwidth. Raises ValueError, NetworkError."""
        packet = packet_bytes(mb_s)
        if (mb_s, packet) == (self._mb_s, self._largest):
            return
        if packet < self._packet:
            self._send(packet)
        if packet > self._largest or (packet < self._largest and self._drained()):
            self._largest = packet
        run(["tc", "-n", self._namespace, *reshape(self._device, mb_s, packet, self._largest)])
        if packet > self._packet:
            self._send(packet)
        self._mb_s, self._packet = mb_s, packet

    def counters(self) -> tuple[int, int, int, int]:
        """As ``counted``."""
        return counted(self._namespace, self._device)

    def _drained(self) -> bool:
        """Wait until all that is queued has left, but not for long; whether it has."""
        _, left, _, waiting = self.counters()
        deadline = monotonic() + DRAINED_WITHIN_S
        while waiting and monotonic() < deadline:
            sleep(LOOK_EVERY_S)
            if self.counters()[1] >= left + waiting:
                return True
        return not waiting

    def _send(self, packet: int) -> None:
        """Full packets of so many IP bytes from now on."""
        run(["ip", "-n", self._namespace, "route", "change", *route(self._subnet, self._device, packet).split()])


class ShapedLink:
    """Both ways of a link; *up* is from its first host to its second."""

    def __init__(self, up: Way, down: Way) -> None:
        self._up = up
        self._down = down

    def set(self, up_mb_s: float, down_mb_s: float) -> None:
        """Other bandwidths from now on, in MB/s (10^6 bytes; 0 is unlimited); nothing queued is lost.

        Raises:
            ValueError: one is negative or no number.
            NetworkError: the link is gone.
        """
        self._up.set(up_mb_s)
        self._down.set(down_mb_s)

    def bytes(self) -> tuple[int, int]:
        """What has left up and down so far: content of packets, as often as it was sent, without their headers.

        Raises:
            NetworkError: the link is gone.
        """
        up, down = (sent - packets * HEADER_BYTES for sent, packets, *_ in self._counters())
        return up, down

    def dropped(self) -> int:
        """Packets that found the queue of their way full so far. Raises NetworkError where the link is gone."""
        return sum(dropped for _, _, dropped, _ in self._counters())

    def _counters(self) -> list[tuple[int, int, int, int]]:
        return [self._up.counters(), self._down.counters()]
