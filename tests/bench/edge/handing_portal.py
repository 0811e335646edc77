"""The portal of a group of real members, with one session that goes on while a member comes back.

python -m bench.edge.handing_portal MODE ADDRESS MODEL DEVICES POSITIONS WAY
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from bench.edge.handing import GUEST, HANDED, REPLAYED
from bench.edge.portal_host import portal_host

from device_agent.group.asking.session import GroupSession
from device_agent.group.formation import making
from device_agent.group.host import GroupHost
from device_agent.planning.handover import Handover, handover
from device_agent.planning.plan import GroupPlan
from device_agent.planning.task import Task, Work
from service.logs import configure_logs

NEW = 64
CHUNK = 512
STEPS_AFTER = 20
WITHIN_S = 120.0


async def main() -> None:
    """Form the group, and have a session go on through what happens to it."""
    mode, address, model, devices, positions, way = sys.argv[1:]
    expected = _decided(way)
    count = int(positions)
    host = portal_host(mode, address, model, devices.split(","), Work(count, NEW, count))
    running = asyncio.create_task(host.run())
    steps = await asyncio.wait_for(_session(host, count), WITHIN_S)
    say({"steps": steps, "expected_s": expected})
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def _session(host: GroupHost, count: int) -> list[dict[str, Any]]:
    """Lose a member, read so many rows, and go on until it is back, and a while with it. Returns each step."""
    submodel = host.submodel
    await host.formed.wait()
    say("formed")
    while _takes_part(host) or not host.formed.is_set():
        await host.news()
    session = submodel.open(submodel.max_positions, prompt=count)
    rows = torch.randn(count, submodel.hidden_size, generator=torch.Generator().manual_seed(1))
    for start in range(0, count, CHUNK):
        await session.forward(rows[start : start + CHUNK], 0)
    await _step(session, rows, 0)
    say("read")
    steps: list[dict[str, Any]] = []
    after = 0
    while after < STEPS_AFTER:
        steps.append(await _step(session, rows, len(steps) + 1))
        after += _takes_part(host)
    return steps


def say(told: object) -> None:
    """To who has started this."""
    print(json.dumps(told), flush=True)


def _takes_part(host: GroupHost) -> bool:
    return any(each.name == GUEST and each.state == "working" for each in host.state().members)


async def _step(session: GroupSession, rows: torch.Tensor, number: int) -> dict[str, Any]:
    began = time.monotonic()
    outputs = await session.forward(rows[number % len(rows)].unsqueeze(0).clone(), 1)
    return {"s": time.monotonic() - began, "check": float(outputs.double().abs().sum())}


def _decided(way: str) -> dict[str, float]:
    """Sessions go over in this way from now on, whatever the profile says; what it says stands in what is returned."""
    expected: dict[str, float] = {}

    def decided(task: Task, before: GroupPlan, after: GroupPlan, lengths: Sequence[int]) -> Handover:
        found = handover(task, before, after, lengths)
        expected.update({HANDED: found.moved_s, REPLAYED: found.recomputed_s})
        return Handover(0.0, 1.0) if way == HANDED else Handover(1.0, 0.0)

    setattr(making, handover.__name__, decided)
    return expected


if __name__ == "__main__":
    torch.set_num_threads(1)
    configure_logs("portal", "info", "text")
    asyncio.run(main())
