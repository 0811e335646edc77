"""What the links between the members of a group carry, measured by all of them over an open fabric.

All members call the same at the same time. Pairs that have no member in common measure at once; then all exchange
together, by ring and in one shot. What depends on all is agreed: everybody has the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

import msgspec
import torch

from device_agent.planning.profile import Collective, LinkProfile
from device_agent.planning.table import Table
from device_agent.profiling.beside import byte_cost
from device_agent.profiling.turns import turns
from peers.board import PeerLost
from peers.collectives import Collectives
from peers.exchange import Exchange
from peers.fabric import Fabric
from peers.tiles import evenly

WITHIN_S: Final = 30.0
"""A member that does not send or answer for so long is lost."""

FIRST_BYTES: Final = 64 * 1024
FACTOR: Final = 4
MOST_BYTES: Final = 64 << 20
"""Sent at once to measure a bandwidth."""

LEAST_S: Final = 1e-6
"""No exchange takes less, whatever a clock says."""

_ALL: Final = 2**62


@dataclass(frozen=True)
class _Pace:
    """How thoroughly is measured.

    Attributes:
        pings: round trips of a small message.
        long_s: what takes so long is enough to know a bandwidth.
        sizes: bytes of all parts together, of exchanges.
        repeats: of each.
        enough_s: no larger exchange is measured behind one that takes so long.
    """

    pings: int
    long_s: float
    sizes: tuple[int, ...]
    repeats: int
    enough_s: float


QUICK: Final = _Pace(10, 0.05, (4096, 32768, 262144, 2097152), 3, 0.1)
THOROUGH: Final = _Pace(40, 0.2, (4096, 16384, 65536, 262144, 1048576, 4194304, 16777216), 7, 0.5)
ONE_SHOT_UPTO: Final = 262144
"""More is never sent in one shot, so it is not measured so either."""

BESIDE_S: Final = 0.2
"""For so long products are measured alone, and then beside gathers, which may take somewhat longer; in each turn."""

_PING, _HEAD, _PAYLOAD, _DONE = range(8, 12)
"""Tags: none of those that steps use."""


class LinksMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one member has measured.

    Attributes:
        links: from it to each other.
        collectives: among all, by ring; the same in all members.
        one_shot_bytes: what all parts of an exchange have together, at most, where one shot is as fast as a ring; the
            same in all members.
        byte_cost_s: seconds of products that this member loses for each byte it sends, while all exchange much.
    """

    links: tuple[LinkProfile, ...]
    collectives: tuple[Collective, ...]
    one_shot_bytes: int
    byte_cost_s: float = 0.0


def measure_links(
    fabric: Fabric, names: Sequence[str], *, quick: bool = True, ring: Sequence[int] | None = None
) -> LinksMeasured:
    """All members call this at the same time, and nothing else meanwhile; blocks, a few seconds at most on a LAN.

    names: of all members, by rank. ring: ranks of those who call it, in the order of their ring; None: all.

    Raises PeerLost, and ValueError where there is not a name for each member.
    """
    if len(names) != fabric.size:
        raise ValueError(f"{len(names)} names are given for {fabric.size} members")
    ranks = tuple(range(fabric.size) if ring is None else ring)
    if len(ranks) == 1:
        return LinksMeasured((), (), 0)
    pace = QUICK if quick else THOROUGH
    links = []
    for turn in turns(len(ranks)):
        for pair in turn:
            if fabric.rank in (among := {ranks[place] for place in pair}):
                other = sum(among) - fabric.rank
                bytes_s, rtt_s = _Link(fabric, other, pace).measured()
                links.append(LinkProfile(names[fabric.rank], names[other], bytes_s, rtt_s))
    together = _Together(fabric, ranks, pace)
    collectives = tuple(together.by_ring(kind) for kind in ("all_gather", "reduce_scatter", "all_reduce"))
    small = together.one_shot_bytes(collectives)
    return LinksMeasured(tuple(links), collectives, small, together.byte_cost_s(collectives[0]))


class _Link:
    """Between this member and another, which does the same with it."""

    def __init__(self, fabric: Fabric, other: int, pace: _Pace) -> None:
        self._collectives, self._pace = Collectives(fabric), pace
        self._other, self._first = other, fabric.rank < other

    def measured(self) -> tuple[float, float]:
        """Bytes a second to the other, and seconds of a round trip: the lower rank asks and sends first."""
        if self._first:
            rtt_s = self._ask()
            bytes_s = self._send(rtt_s)
            self._answer()
            self._receive()
            return bytes_s, rtt_s
        self._answer()
        self._receive()
        rtt_s = self._ask()
        return self._send(rtt_s), rtt_s

    def _ask(self) -> float:
        found = []
        for _ in range(self._pace.pings + 1):
            begun = perf_counter()
            self._give(torch.zeros(1), _PING)
            self._take(torch.zeros(1), _PING)
            found.append(perf_counter() - begun)
        return max(median(found[1:]), LEAST_S)

    def _answer(self) -> None:
        for _ in range(self._pace.pings + 1):
            self._take(torch.zeros(1), _PING)
            self._give(torch.zeros(1), _PING)

    def _send(self, rtt_s: float) -> float:
        """More and more, until it takes long. What differs between the last two is the link's: what a queue on the way
        takes at once is in both."""
        size, found = FIRST_BYTES, [(0, rtt_s)]
        while True:
            payload = torch.zeros(size, dtype=torch.uint8)
            begun = perf_counter()
            self._give(torch.tensor([size]), _HEAD)
            self._give(payload, _PAYLOAD)
            self._take(torch.zeros(1), _DONE)
            found.append((size, perf_counter() - begun))
            if found[-1][1] >= self._pace.long_s or size >= MOST_BYTES:
                break
            size *= FACTOR
        self._give(torch.tensor([0]), _HEAD)
        (less, sooner), (more, later) = found[-2:]
        # Whatever came between, the last one did not take much longer than its share.
        return (more - less) / max(later - sooner, later * (1 - less / more) / 2, LEAST_S)

    def _receive(self) -> None:
        while True:
            head = torch.zeros(1, dtype=torch.int64)
            self._take(head, _HEAD)
            size = int(head)
            if not 0 <= size <= MOST_BYTES:
                raise PeerLost(f"member {self._other} says that it sends {size} bytes", self._other)
            if not size:
                return
            self._take(torch.empty(size, dtype=torch.uint8), _PAYLOAD)
            self._give(torch.zeros(1), _DONE)

    def _give(self, tensor: torch.Tensor, tag: int) -> None:
        # What comes back says that it has left.
        self._collectives.send(tensor, self._other, tag)

    def _take(self, tensor: torch.Tensor, tag: int) -> None:
        self._collectives.receive(tensor, self._other, tag).wait(WITHIN_S)


class _Together:
    """All members of a ring at once."""

    def __init__(self, fabric: Fabric, ranks: Sequence[int], pace: _Pace) -> None:
        self._size, self._place, self._pace = len(ranks), ranks.index(fabric.rank), pace
        self._ring, self._one_shot = Collectives(fabric, ranks, 0), Collectives(fabric, ranks, _ALL)

    def by_ring(self, kind: str) -> Collective:
        """Seconds of an exchange by ring, of all sizes, or of those up to one that takes long enough."""
        sizes, found = [], []
        for size in self._pace.sizes:
            sizes.append(size)
            found.append(self._seconds(self._ring, kind, size))
            if found[-1] >= self._pace.enough_s:
                break
        return Collective(kind, self._size, Table((tuple(sizes),), tuple(found)))

    def one_shot_bytes(self, by_ring: Sequence[Collective]) -> int:
        """The largest size up to which a gather and a sum together take no longer in one shot."""
        best = 0
        measured = [each for each in by_ring if each.kind in ("all_gather", "all_reduce")]
        for size in self._pace.sizes:
            if size > ONE_SHOT_UPTO or any(size > each.seconds.axes[0][-1] for each in measured):
                break
            if sum(self._seconds(self._one_shot, each.kind, size) - each.seconds(size) for each in measured) > 0:
                break
            best = size
        return best

    def byte_cost_s(self, by_ring: Collective) -> float:
        """What products lose beside gathers, which no member waits for."""
        size = int(by_ring.seconds.axes[0][-1])
        tensor = torch.zeros(size // 4)
        shares = evenly(len(tensor), self._size)
        at_once = max(1, round(BESIDE_S / by_ring.seconds(size)))

        def moving() -> Callable[[], bool]:
            exchanges = [self._ring.all_gather(tensor, shares) for _ in range(at_once)]
            deadline = perf_counter() + WITHIN_S

            def done() -> bool:
                if perf_counter() >= deadline:
                    for each in exchanges:
                        each.wait(LEAST_S)
                return all(each.done for each in exchanges)

            return done

        sent = at_once * size * (self._size - 1) / self._size
        found = byte_cost(moving, lambda: self._agreed(0.0), BESIDE_S, sent)
        self._agreed(0.0)
        return found

    def _seconds(self, collectives: Collectives, kind: str, size: int) -> float:
        """What the slowest member takes, in the median; what all agree on."""
        tensor = torch.zeros(size // 4)
        shares = evenly(len(tensor), self._size)
        run: dict[str, Callable[[], Exchange]] = {
            "all_gather": lambda: collectives.all_gather(tensor, shares),
            "reduce_scatter": lambda: collectives.reduce_scatter(tensor, shares).exchange,
            "all_reduce": lambda: collectives.all_reduce(tensor),
        }
        found = []
        for _ in range(self._pace.repeats + 1):
            self._agreed(0.0)
            begun = perf_counter()
            run[kind]().wait(WITHIN_S)
            found.append(perf_counter() - begun)
        return self._agreed(max(median(found[1:]), LEAST_S))

    def _agreed(self, seconds: float) -> float:
        """The most that any member says; nobody goes on before all have said it."""
        said = torch.zeros(self._size, dtype=torch.float64)
        said[self._place] = seconds
        self._one_shot.all_gather(said, [1] * self._size).wait(WITHIN_S)
        return float(said.max())
