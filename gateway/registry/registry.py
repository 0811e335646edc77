"""Who serves what, as seen by one gateway: the seam behind which the memory of agents may be shared by several.

A registry is never on the path of a token, nor of a request: ``publish``, ``withdraw`` and ``known`` do not block, and
an implementation that talks to a store does so in the background and answers from its last snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from wire.group_messages import GroupReport
from wire.request_messages import ServedModel


class AgentRecord(msgspec.Struct, frozen=True):
    """One connected agent and its load.

    Attributes:
        key: unique for one connection of one agent.
        capacity: answers it generates at once.
        running: those it has to generate now, other gateways' included: a request counts as many as it may have
            generated at once.
        assigned: requests it was ever given here; among equals, the one with fewest is next.
        cloud_connected: None when it needs no cloud.
        crowded: so much waits to be sent to it that another one is better, if there is one.
        group: the group that it is the portal of, as it reported last.
        turns: digests of the chat requests that it got last, see ``conversations``.
    """

    key: str
    name: str
    models: tuple[ServedModel, ...]
    capacity: int
    running: int = 0
    assigned: int = 0
    draining: bool = False
    cloud_connected: bool | None = None
    crowded: bool = False
    group: GroupReport | None = None
    turns: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Peer:
    """Another gateway, as it was heard last; the keys of its agents are told from everybody else's."""

    id: str
    url: str
    agents: tuple[AgentRecord, ...]
    waiting: int


class Registry(Protocol):
    """Where agents are written down."""

    async def open(self) -> None:
        """Begin; called once before anything else."""

    async def close(self) -> None:
        """End; what this gateway has published disappears."""

    def publish(self, record: AgentRecord) -> None:
        """Add an agent, or replace what was known of it; its place in the order stays."""

    def withdraw(self, key: str) -> None:
        """Forget an agent; an unknown key is no error."""

    def known(self) -> list[AgentRecord]:
        """Return all agents known, the longest known first."""
