"""Who may keep a place, of those who hold a socket and say nothing: nobody keeps others out by waiting. Pure.

Places are bounded, and so are those of one party, an address or a tenant. Who comes when there is none left gets that
of the one who has been *idle* for longest, of the party itself where that has all it may have, else of the party with
most. The fuller it is, the shorter anybody may be idle.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Final, Generic, TypeVar

LEAST_PATIENCE_S: Final = 1.0
"""What is left of the patience where all places are taken: enough for a long way and a slow start."""

IPV6_SITE: Final = 64
"""Bits of an IPv6 address that tell one site from another; whoever has one address of a site has all of them."""

Member = TypeVar("Member")


class Crowd(Generic[Member]):
    """Those who have a place.

    Args:
        most: places.
        of_party: places of one party.
        patience_s: how long anybody may be idle while half of the places are free.
    """

    def __init__(self, most: int, of_party: int, patience_s: float) -> None:
        self._most = most
        self._of_party = of_party
        self._patience_s = patience_s
        self._idle_since: dict[Member, float] = {}
        """The one who has been idle for longest is the first."""
        self._parties: dict[Member, str] = {}

    def __len__(self) -> int:
        return len(self._parties)

    @property
    def patience_s(self) -> float:
        """How long anybody may be idle now."""
        pressed = min(1.0, max(0.0, 2 * len(self._parties) / self._most - 1))
        return self._patience_s + pressed * (min(LEAST_PATIENCE_S, self._patience_s) - self._patience_s)

    def enter(self, member: Member, party: str, now: float) -> list[Member] | None:
        """Give ``member``, who is idle, a place, and return those who have lost theirs to make room. None where there
        is no room: all who could lose their place are busy."""
        gone: list[Member] = []
        counts = Counter(self._parties.values())
        full = counts[party] >= self._of_party
        if full or len(self._parties) >= self._most:
            idle = [each for each in self._idle_since if not full or self._parties[each] == party]
            if not idle:
                return None
            # Of the party with most, and of several such the one who is idle for longest.
            gone.append(max(idle, key=lambda each: counts[self._parties[each]]))
            self.leave(gone[0])
        self._parties[member] = party
        self._idle_since[member] = now
        patience_s = self.patience_s
        gone += [each for each, since in self._idle_since.items() if now - since > patience_s]
        for each in gone:
            self.leave(each)
        return gone

    def busy(self, member: Member) -> None:
        """It asks for something: it keeps its place until it is idle again."""
        self._idle_since.pop(member, None)

    def idle(self, member: Member, now: float) -> None:
        """It asks for nothing from now on."""
        if member in self._parties:
            self._idle_since[member] = now

    def leave(self, member: Member) -> None:
        """Its place is free; twice does no harm."""
        self._idle_since.pop(member, None)
        self._parties.pop(member, None)


def party_of(address: str) -> str:
    """Whose an address is taken to be: an IPv4 address for itself, an IPv6 one for its whole site."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, IPV6_SITE), strict=False))
    return str(parsed)
