"""What a member keeps of sessions where one life of its group ends and the next begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from device_agent.group.messages.joined_plan import JoinedPlan
from split_model.kv_cache import KVCache


@dataclass
class HandedSession:
    """One session.

    Attributes:
        positions: most that it may reach.
        position: how many it has.
        caches: of each layer of the group and each piece, as ``pieces_of`` has them by the plan.
    """

    positions: int
    position: int
    caches: list[list[KVCache]]


@dataclass
class HandedOver:
    """Of one member, whatever lives come. For one thread at a time.

    Attributes:
        plan: by which keys and values lie; None: there are none.
        sessions: by their numbers.
    """

    plan: JoinedPlan | None = None
    sessions: dict[int, HandedSession] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        kept = (cache for each in self.sessions.values() for caches in each.caches for cache in caches)
        return sum(cache.nbytes for cache in kept)

    def put(self, plan: JoinedPlan | None, sessions: Mapping[int, HandedSession]) -> None:
        """A life ends, and what was kept before is forgotten."""
        self.plan, self.sessions = plan, dict(sessions)

    def take(self) -> HandedOver:
        """A life begins, and has all of it: whatever becomes of it, the next one does not."""
        found = HandedOver(self.plan, self.sessions)
        self.put(None, {})
        return found
