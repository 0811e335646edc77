"""What tc and ip are told so that a way of a link carries just so many bytes a second: text, nothing is run here.

Rates are of what programs send: the headers of packets are the emulation's own business, so the bucket is filled
faster by their share, and packets without content (TCP's acknowledgements) pass beside it. A token bucket lets what it
has saved up through at once, one packet at least; so slow ways get small packets, and a message is early by less than
a millisecond.
"""

from __future__ import annotations

import math

HEADER_BYTES = 66
"""Of a packet: Ethernet 14, IP 20, TCP with timestamps 32."""

IP_TCP_BYTES = 52

PACKETS = ((0.75, 256), (2.0, 512), (100.0, 1500), (math.inf, 16000))
"""IP bytes of a full packet, on ways of up to so many MB/s: smaller is more exact, larger is less work."""

MOST_PACKET = PACKETS[-1][1]

LATE_S = 0.0002
"""By so much a timer may be late and nothing is lost: the bucket holds that much more than a packet."""

QUEUE_BYTES, QUEUE_PACKETS = 262_144, 32
"""What waits before a way, at least so many full packets: a connection alone never has so much there, many together
hardly ever. What is dropped, TCP sends again 200 ms later."""

UNLIMITED_MB_S = 4000.0
"""What a rate of 0 stands for: no packet ever waits, yet the way is shaped, so that it can be changed."""


def rate(mb_s: float) -> float:
    """A bandwidth as it is applied. Raises ValueError where it is negative or no number."""
    if not (math.isfinite(mb_s) and mb_s >= 0):
        raise ValueError(f"{mb_s} MB/s is no bandwidth")
    return mb_s or UNLIMITED_MB_S


def packet_bytes(mb_s: float) -> int:
    """IP bytes of a full packet on a way of so many MB/s (10^6 bytes; 0 is unlimited); as ``rate``."""
    return next(packet for most, packet in PACKETS if rate(mb_s) <= most)


def bucket(mb_s: float, packet: int, largest: int) -> str:
    """The parameters of ``tbf`` for a way of so many MB/s with full packets of ``packet`` IP bytes; as ``rate``.

    ``largest`` may still be queued; a packet that does not fit the bucket would block it for good.
    """
    content, frame = packet - IP_TCP_BYTES, packet - IP_TCP_BYTES + HEADER_BYTES
    bytes_s = rate(mb_s) * 1e6 * frame / content
    held = round(max(frame, largest - IP_TCP_BYTES + HEADER_BYTES) + bytes_s * LATE_S)
    return f"rate {max(8, round(bytes_s * 8))}bit burst {held} limit {max(QUEUE_BYTES, QUEUE_PACKETS * largest)}"


def shape(device: str, mb_s: float, packet: int) -> list[str]:
    """Lines for ``tc -batch``: shape what leaves by ``device`` in full packets of ``packet`` IP bytes; as ``rate``.

    The root sorts: IP packets of less than 64 bytes are acknowledgements and go straight out, the rest to the bucket.
    """
    return [
        f"qdisc add dev {device} root handle 1: htb default 1 direct_qlen 1000",
        f"class add dev {device} parent 1: classid 1:1 htb rate 100gbit quantum 60000",
        f"qdisc add dev {device} parent 1:1 handle 2: tbf {bucket(mb_s, packet, packet)}",
        f"filter add dev {device} parent 1: protocol ip u32 match u16 0 0xffc0 at 2 flowid 1:0",
    ]


def reshape(device: str, mb_s: float, packet: int, largest: int) -> list[str]:
    """Words for ``tc``: another rate from now on; what is queued stays. As ``bucket``."""
    return f"qdisc change dev {device} parent 1:1 handle 2: tbf {bucket(mb_s, packet, largest)}".split()


def route(subnet: str, device: str, packet: int) -> str:
    """The end of ``ip``'s ``route add`` or ``route change``: full packets of so many IP bytes, whatever comes back."""
    return f"{subnet} dev {device} mtu lock {packet} advmss {max(MOST_PACKET, packet) - 40}"
