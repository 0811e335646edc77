"""What an agent's report says that it did not say before and that people should know. Pure."""

from __future__ import annotations

from typing import NamedTuple

from wire.group_messages import GroupReport
from wire.request_messages import AgentState

LOST: frozenset[str] = frozenset({"lost", "slow"})
"""States of a member of a group that computes no more."""


class Noticed(NamedTuple):
    """See ``Incidents.note``."""

    kind: str
    who: str
    done: str
    times: int = 1


def noticed(name: str, before: AgentState | None, now: AgentState) -> list[Noticed]:
    """Return what is new in the report of the agent of this name; of its first one nothing is."""
    if before is None:
        return []
    found: list[Noticed] = []
    middle = "cloud" if now.group is None else "group"
    if before.cloud_connected and now.cloud_connected is False:
        done = "it dials again, answers wait" if now.group is None else "it waits for members, answers wait"
        found.append(Noticed(f"{middle}_lost", name, done))
    elif before.cloud_connected is False and now.cloud_connected:
        found.append(Noticed(f"{middle}_back", name, "answers go on"))
    if now.restored > before.restored:
        done = "their rows went to a cloud again, no token is lost"
        found.append(Noticed("sessions_restored", name, done, now.restored - before.restored))
    if now.group is not None:
        found += [
            Noticed(f"member_{state}", who, "the others take its layers over")
            for who, state in _out(now.group).items()
            if before.group is None or _out(before.group).get(who) != state
        ]
    return found


def _out(group: GroupReport) -> dict[str, str]:
    return {each.name: each.state for each in group.members if each.state in LOST}
