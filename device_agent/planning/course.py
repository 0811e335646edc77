"""The clocks of a group's nodes while they compute and exchange. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from device_agent.planning.exchanges import (
    Ports,
    Products,
    at_once,
    direct_scatter,
    moved_bytes,
    ring_bytes,
    ring_gather,
    ring_scatter,
)
from device_agent.planning.lan import Lan

STEADY = 1e-9
"""Shifts that differ by less than this share of them are alike."""


class Course:
    """Where each node has come to.

    Attributes:
        at: seconds, by node.
        busy: seconds each has computed.
        sent: bytes, by layer and node.
        layer: to which what is sent now belongs.
    """

    def __init__(self, lan: Lan, layers: int) -> None:
        nodes = len(lan.devices)
        self._lan = lan
        self._alone = [[0.0] * lan.members for _ in range(lan.members)]
        self._ports = Ports([0.0] * nodes, [0.0] * nodes)
        self.at = [0.0] * nodes
        self.busy = [0.0] * nodes
        self.sent = [[0.0] * nodes for _ in range(layers)]
        self.layer = 0

    def compute(self, seconds: Sequence[float]) -> None:
        """Each computes for so long, from node 0 on."""
        for node, second in enumerate(seconds):
            self.at[node] += second
            self.busy[node] += second

    def gather(
        self,
        sizes: Sequence[float],
        whole: Sequence[float],
        tiles: Products | None,
        early: Sequence[float] | None = None,
        pieces: int = 1,
    ) -> None:
        """All-gather, and what every member computes with what has come.

        sizes: bytes of each member's part. whole: seconds of the product with all parts at once. tiles: seconds of the
        product with each part, computed as it comes; None: nothing is computed before all have come. early: how many
        seconds ago the first of so many pieces of each member's part was there; the last is there now.
        """
        if self._lan.members > 1 and sum(sizes) <= self._lan.small:
            self.spread([[size] * self._lan.members for size in sizes])
            self.compute(whole)
        elif tiles is None:
            self._ring(ring_gather(self._lan, self._ports, self._members, sizes, self._alone), ring_bytes(sizes))
            self.compute(whole)
        else:
            begins = self._members
            ready = begins if early is None else [now - ago for now, ago in zip(begins, early, strict=True)]
            last = ring_gather(self._lan, self._ports.copy(), begins, [size / pieces for size in sizes], tiles)
            ends = ring_gather(self._lan, self._ports, begins, sizes, tiles, ready)
            self._ring([max(both) for both in zip(ends, last, strict=True)], ring_bytes(sizes))
            self._beside(begins, tiles, moved_bytes(sizes))

    def scatter(self, sizes: Sequence[float], whole: Sequence[float], tiles: Products | None) -> None:
        """What every member computes, and the reduce-scatter of it, as in `gather` the other way about."""
        if self._lan.members > 1 and sum(sizes) <= self._lan.small:
            self.compute(whole)
            self.spread([list(sizes)] * self._lan.members)
        elif tiles is None:
            self.compute(whole)
            ends = direct_scatter(self._lan, self._ports, self._members, sizes, self._alone)
            self._ring(ends, ring_bytes(sizes, scatter=True))
        else:
            begins = self._members
            ends = direct_scatter(self._lan, self._ports, begins, sizes, tiles)
            self._ring(ends, ring_bytes(sizes, scatter=True))
            self._beside(begins, tiles, moved_bytes(sizes, scatter=True))

    def all_reduce(self, total: float) -> None:
        """Of so many bytes, which every member has: in one shot or round the ring, twice, in even parts."""
        members = self._lan.members
        if members == 1:
            return
        if total <= self._lan.small:
            self.spread([[total] * members for _ in range(members)])
            return
        even = [total / members] * members
        reduced = ring_scatter(self._lan, self._ports, self._members, even, self._alone, "all_reduce")
        ends = ring_gather(self._lan, self._ports, reduced, even, self._alone, kind="all_reduce")
        self._ring(ends, [2 * size for size in ring_bytes(even)])

    def spread(self, parts: Sequence[Sequence[float]], begins: Sequence[float] | None = None) -> None:
        """Each node sends so many bytes to each, and waits for what comes to itself.

        parts: [sender][receiver], of the members or of all nodes. begins: when it begins to leave; None: now.
        """
        came = at_once(self._lan, self._ports, self.at[: len(parts)] if begins is None else begins, parts)
        for sender, row in enumerate(parts):
            for receiver, size in enumerate(row):
                if size and receiver != sender:
                    self.at[receiver] = max(self.at[receiver], came[sender][receiver])
                    self.sent[self.layer][sender] += size

    def send(self, sender: int, sizes: dict[int, float]) -> None:
        """One node sends so many bytes to each of some."""
        nodes = len(self.at)
        parts = [[0.0] * nodes for _ in range(nodes)]
        for receiver, size in sizes.items():
            parts[sender][receiver] = size
        self.spread(parts)

    def repeat(self, before: Course, layers: int, times: int) -> bool:
        """As if what came since `before`, so many layers ago, came so many times again.

        False, and nothing is done, where it did not shift every member's clock alike, or left more to be sent: what
        follows will differ then.
        """
        members = range(self._lan.members)
        shifts = [self.at[member] - before.at[member] for member in members]
        waiting = [abs(self._unsent(member) - before._unsent(member)) for member in members]
        if max(max(shifts) - min(shifts), *waiting) > STEADY * max(shifts):
            return False
        for moments in (self.at, self._ports.out, self._ports.into):
            for member in members:
                moments[member] += times * shifts[member]
        self.busy = [now + times * (now - was) for was, now in zip(before.busy, self.busy, strict=True)]
        rows = zip(before.sent, [list(row) for row in self.sent], strict=True)
        for layer, (was, now) in enumerate(rows):
            more = [after - earlier for earlier, after in zip(was, now, strict=True)]
            for ahead in range(1, times + 1) if any(more) else ():
                here = self.sent[layer + ahead * layers]
                self.sent[layer + ahead * layers] = [size + extra for size, extra in zip(here, more, strict=True)]
        return True

    def copy(self) -> Course:
        """These clocks, which do not move with them."""
        other = copy(self)
        other.at, other.busy, other.sent = list(self.at), list(self.busy), [list(row) for row in self.sent]
        other._ports = self._ports.copy()
        return other

    def _unsent(self, member: int) -> float:
        """Seconds for which a member's port is busy still."""
        return max(self._ports.out[member] - self.at[member], 0.0)

    @property
    def _members(self) -> list[float]:
        return self.at[: self._lan.members]

    def _ring(self, ends: Sequence[float], sent: Sequence[float]) -> None:
        for member, end in enumerate(ends):
            if self._lan.members > 1:
                self.sent[self.layer][member] += sent[member]
            self.at[member] = end

    def _beside(self, begins: Sequence[float], tiles: Products, moved: Sequence[float]) -> None:
        """Each has multiplied while these bytes moved. The processor pays for both: who waited for the link has paid
        for its bytes meanwhile, and who did not is later by them."""
        for member, begin in enumerate(begins):
            product = sum(tiles[member])
            paid = self._lan.devices[member].byte_cost_s * moved[member]
            self.at[member] = max(self.at[member], begin + product + paid)
            self.busy[member] += product
