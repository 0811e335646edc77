"""When what members exchange has come: round a ring in tiles, or from each to each at once. Pure.

Everything takes the moments at which members begin, in seconds, and gives those at which they end. A member sends
and receives while it computes, and begins with the next layer while its port may still be busy with the last one's
bytes. Bytes are those of the payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agent.planning.lan import Lan

Moments = list[float]


@dataclass
class Ports:
    """When each node's port is free again, to send and to receive; exchanges move it on."""

    out: Moments
    into: Moments

    def copy(self) -> Ports:
        """These moments, which do not move with them."""
        return Ports(list(self.out), list(self.into))


Products = Sequence[Sequence[float]]


def ring_gather(
    lan: Lan,
    ports: Ports,
    begins: Sequence[float],
    sizes: Sequence[float],
    products: Products,
    ready: Sequence[float] | None = None,
    kind: str = "all_gather",
) -> Moments:
    """All-gather round the ring: member i takes its own tile first, then that of the member before it, and so on.

    sizes: bytes of each member's tile. products: what each member computes, in seconds, with each tile as it comes.
    ready: when a member's own tile may leave and others may come, if that is before it begins to compute. kind: as what
    it was measured.
    """
    members = lan.members
    factor = lan.factor(kind, sum(sizes))
    opens = begins if ready is None else ready
    has, free = list(opens), ports.out
    ends = [begin + products[member][member] for member, begin in enumerate(begins)]
    for round_ in range(1, members):
        arrived = [0.0] * members
        for member, after in lan.ring:
            tile = (member - round_ + 1) % members
            leaves = has[member]
            if sizes[tile]:
                free[member] = max(leaves, free[member]) + factor * sizes[tile] / lan.bytes_s[member][after]
                leaves = free[member] + factor * lan.delay_s[member][after]
            arrived[after] = max(leaves, opens[after])  # who has not begun passes nothing on
        has = arrived
        for member in range(members):
            ends[member] = max(ends[member], has[member]) + products[member][(member - round_) % members]
    return ends


def ring_scatter(
    lan: Lan,
    ports: Ports,
    begins: Sequence[float],
    sizes: Sequence[float],
    products: Products,
    kind: str = "reduce_scatter",
) -> Moments:
    """Reduce-scatter round the ring: in round t, from 1, member i computes its part of tile i - t, adds what came of it
    and sends it on; the last tile is its own.

    sizes: bytes of each member's tile. products: seconds of each member's part of each tile. kind: as what it
    was measured.
    """
    members = lan.members
    factor = lan.factor(kind, sum(sizes))
    computed, came, free = list(begins), list(begins), ports.out
    ends = list(begins)
    for round_ in range(1, members + 1):
        arrived = [0.0] * members
        for member, after in lan.ring:
            tile = (member - round_) % members
            computed[member] += products[member][tile]
            ready = max(computed[member], came[member])
            if round_ < members and sizes[tile]:
                free[member] = max(ready, free[member]) + factor * sizes[tile] / lan.bytes_s[member][after]
                ready = free[member] + factor * lan.delay_s[member][after]
            arrived[after] = ready
        # What came it must add to and pass on, also where its own tile needs nothing of it.
        ends = [max(ends[member], computed[member], came[member]) for member in range(members)]
        came = arrived
    return ends


def direct_scatter(
    lan: Lan, ports: Ports, begins: Sequence[float], sizes: Sequence[float], products: Products
) -> Moments:
    """Reduce-scatter in which each part goes straight to its owner, who adds them: tiles are computed in the order of
    `ring_scatter`, so no two members send to the same one at once, and nobody waits for what others have added.
    """
    members = lan.members
    factor = lan.factor("reduce_scatter", sum(sizes))
    computed, came = list(begins), list(begins)
    for round_ in range(1, members + 1):
        for member in range(members):
            tile = (member - round_) % members
            computed[member] += products[member][tile]
            if round_ < members and sizes[tile]:
                leaves = max(computed[member], ports.out[member])
                ports.out[member] = leaves + factor * sizes[tile] / lan.bytes_s[member][tile]
                came[tile] = max(came[tile], ports.out[member] + factor * lan.delay_s[member][tile])
    return [max(both) for both in zip(computed, came, strict=True)]


def ring_bytes(sizes: Sequence[float], scatter: bool = False) -> list[float]:
    """What each member sends: of a gather all tiles but its successor's, of a reduce-scatter all but its own."""
    shift = 0 if scatter else 1
    return [sum(sizes) - sizes[(member + shift) % len(sizes)] for member in range(len(sizes))]


def moved_bytes(sizes: Sequence[float], scatter: bool = False) -> list[float]:
    """What each member has to do with, the mean of what it sends and what comes."""
    others = len(sizes) - 1
    came = [others * size if scatter else sum(sizes) - size for size in sizes]
    return [(out + into) / 2 for out, into in zip(ring_bytes(sizes, scatter), came, strict=True)]


def at_once(lan: Lan, ports: Ports, begins: Sequence[float], parts: Sequence[Sequence[float]]) -> list[Moments]:
    """When what each node sends to each has come: [sender][receiver], a node's own at the moment it begins.

    parts: bytes from each to each. A port takes one message at a time each way; the nearest behind comes first.
    """
    nodes = len(begins)
    arrived = [[begin] * nodes for begin in begins]
    for hop in range(1, nodes):
        for sender in range(nodes):
            receiver = (sender + hop) % nodes
            if parts[sender][receiver]:
                begin = max(begins[sender], ports.out[sender], ports.into[receiver])
                gone = begin + parts[sender][receiver] / lan.bytes_s[sender][receiver]
                ports.out[sender] = ports.into[receiver] = gone
                arrived[sender][receiver] = gone + lan.delay_s[sender][receiver]
    return arrived
