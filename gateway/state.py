"""GET /state: agents and load, for people."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gateway.delivery import Desk
from gateway.groups import shown
from wire.request_messages import ServedModel


def state_of(desk: Desk) -> dict[str, Any]:
    """Return agents and load, for people. What agents run is counted in answers, what is open here in prompts."""
    agents = []
    for link in desk.roster.links:
        record = link.record
        agents.append(
            {
                "name": record.name,
                "models": [model.id for model in record.models],
                "drafts": {model.id: model.drafts for model in record.models},
                "tasks": {model.id: model.tasks for model in record.models},
                "acceptance": round(link.accepted / link.proposed, 3) if link.proposed else None,
                "running": record.running,
                "capacity": record.capacity,
                "assigned": record.assigned,
                "draining": record.draining,
                "cloud_connected": record.cloud_connected,
                "connected_s": round(time.monotonic() - link.since, 1),
                "rtt_ms": None if link.stream.rtt_s is None else round(link.stream.rtt_s * 1e3, 2),
                **({"group": shown(link.group)} if link.group is not None else {}),
                **({"lossy": {"t_max_s": limits}} if (limits := _limits(record.models)) else {}),
            }
        )
    return {
        "draining": desk.dispatcher.draining,
        "running": desk.roster.running,
        "waiting": len(desk.roster.waiting),
        "max_waiting": desk.config.max_waiting,
        "models": [model.id for model in desk.roster.models()],
        "agents": agents,
    }


def _limits(models: Sequence[ServedModel]) -> dict[str, float]:
    """Of models whose heads may be left out, within how many seconds prompts are read."""
    return {model.id: model.t_max_s for model in models if model.t_max_s}
