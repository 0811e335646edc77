"""Groups of devices, as their portals report them: for people, for clients, and for devices that look for theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.registry.registry import AgentRecord
from wire.group_messages import GroupReport


class KnownGroup(msgspec.Struct, frozen=True):
    """Where a group's devices join it."""

    name: str
    address: str


class KnownGroups(msgspec.Struct, frozen=True):
    """GET /groups."""

    groups: list[KnownGroup]


def known_groups(agents: Iterable[AgentRecord]) -> KnownGroups:
    """Those that can be joined. Two portals may say the same name: whoever has the key finds out which is meant."""
    reports = (agent.group for agent in agents)
    return KnownGroups([KnownGroup(each.name, each.address) for each in reports if each is not None and each.address])


def groups_of(model: str, agents: Iterable[AgentRecord]) -> list[dict[str, Any]]:
    """The groups that serve a model, in the order in which their portals have come; of members only what they do."""
    return [
        {
            "name": agent.group.name,
            "mode": agent.group.mode,
            "formed": agent.group.formed,
            "members": [{"name": each.name, "state": each.state} for each in agent.group.members],
        }
        for agent in agents
        if agent.group is not None and any(each.id == model for each in agent.models)
    ]


def shown(group: GroupReport) -> dict[str, Any]:
    """A group in GET /state: all that is known, but where devices join it."""
    members = [{name: getattr(each, name) for name in each.__struct_fields__} for each in group.members]
    about = {name: getattr(group, name) for name in ("name", "mode", "epoch", "formed", "why")}
    return {**about, "members": members}
