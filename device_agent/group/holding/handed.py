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
        epoch: of the life that they are from.
    """

    plan: JoinedPlan | None = None
    sessions: dict[int, HandedSession] = field(default_factory=dict)
    epoch: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        kept = (cache for each in self.sessions.values() for caches in each.caches for cache in caches)
        return sum(cache.nbytes for cache in kept)

    def put(self, plan: JoinedPlan | None, sessions: Mapping[int, HandedSession], epoch: int = 0) -> None:
        """A life ends, and what was kept before is forgotten."""
        self.plan, self.sessions, self.epoch = plan, dict(sessions), epoch

    def take(self, epoch: int = 0) -> HandedOver:
        """The life of this epoch begins, and has all of it: whatever becomes of it, the next one does not. There is
        nothing for it where another was to begin between them, and did not: the portal has forgotten then."""
        found = HandedOver() if epoch > self.epoch + 1 else HandedOver(self.plan, self.sessions, self.epoch)
        self.put(None, {})
        return found
