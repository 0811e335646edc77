"""What is new between two looks, and what of it somebody is told who watches. Pure.

Each thing is encoded once for all who watch; what one of them is told is put together of these pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.incidents import EVERYBODY, Incident
from gateway.page.view import Seen, encode

Owned = tuple[str, bytes]
"""Whose it is, a tenant or one of the words of ``incidents``; and what is told, as JSON."""


@dataclass(frozen=True)
class Audience:
    """Who watches: an operator sees all requests, anybody else those of its own tenant."""

    tenant: str
    operator: bool = False

    def sees(self, whose: str) -> bool:
        """Whether it is told what is ``whose``."""
        return self.operator or whose in (self.tenant, EVERYBODY)


@dataclass(frozen=True)
class Change:
    """What is told at once: all there is (``whole``), or what has changed since the last time. What is gone, by id.
    ``requests_hidden``: those that go on, and others are shown in their place. ``fleet``: None where it is as it was.
    """

    whole: bool
    totals: bytes
    agents: Sequence[bytes]
    agents_gone: Sequence[bytes]
    requests: Sequence[Owned]
    requests_gone: Sequence[Owned]
    requests_hidden: Sequence[Owned]
    marks: Sequence[Owned]
    incidents: Sequence[Owned]
    fleet: bytes | None

    def told(self, audience: Audience) -> bytes:
        """Return the server-sent event that tells it to somebody."""

        def theirs(owned: Iterable[Owned]) -> bytes:
            return b",".join([data for whose, data in owned if audience.sees(whose)])

        parts = {
            b"agents": b",".join(self.agents),
            b"agents_gone": b",".join(self.agents_gone),
            b"requests": theirs(self.requests),
            b"requests_gone": theirs(self.requests_gone),
            b"requests_hidden": theirs(self.requests_hidden),
            b"marks": theirs(self.marks),
            b"incidents": theirs(self.incidents),
        }
        lists = b"".join([b',"%b":[%b]' % (name, items) for name, items in parts.items() if items or self.whole])
        operator = b"true" if audience.operator else b"false"
        name = b"whole" if self.whole else b"change"
        fleet = b"" if self.fleet is None else b',"fleet":%b' % self.fleet
        return b'event: %b\ndata: {"operator":%b,"totals":%b%b%b}\n\n' % (name, operator, self.totals, fleet, lists)


def all_of(now: Seen, incidents: Sequence[Incident]) -> Change:
    """Return all there is, for who begins to watch or has missed something."""
    agents, requests = list(now.agents.values()), list(now.requests.values())
    return Change(True, now.totals, agents, (), requests, (), (), (), _incidents(incidents), now.fleet)


def between(before: Seen, now: Seen, marks: Sequence[Owned], incidents: Sequence[Incident]) -> Change:
    """Return what has changed.

    Args:
        marks: chunks and rounds that were over meanwhile; ``incidents``: what went wrong.
    """
    away = [(id, (whose, encode(id))) for id, (whose, _) in before.requests.items() if id not in now.requests]
    return Change(
        False,
        now.totals,
        [data for id, data in now.agents.items() if before.agents.get(id) != data],
        [encode(id) for id in before.agents if id not in now.agents],
        [owned for id, owned in now.requests.items() if before.requests.get(id) != owned],
        [owned for id, owned in away if id not in now.running],
        [owned for id, owned in away if id in now.running],
        marks,
        _incidents(incidents),
        now.fleet if now.fleet != before.fleet else None,
    )


def teller(change: Change) -> Callable[[Audience], bytes]:
    """Return what tells a change to any audience, put together once for each."""
    told: dict[Audience, bytes] = {}

    def tell(audience: Audience) -> bytes:
        if audience not in told:
            told[audience] = change.told(audience)
        return told[audience]

    return tell


def _incidents(incidents: Sequence[Incident]) -> list[Owned]:
    return [(each.whose, _without_whose(each)) for each in incidents]


def _without_whose(incident: Incident) -> bytes:
    return encode({name: getattr(incident, name) for name in incident.__struct_fields__ if name != "whose"})
