"""The portal of a group of real members, which reads one text after another and says how long each took.

python -m bench.edge.series_portal MODE ADDRESS MODEL DEVICES SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress

import torch
from bench.edge.portal_host import portal_host

from device_agent.group.host import GroupHost
from device_agent.planning.task import Work
from service.logs import configure_logs

ROWS = 48
LOOK_EVERY_S = 0.1


async def main() -> None:
    """Form the group, then go on for so many seconds."""
    mode, address, model, devices, seconds = sys.argv[1:]
    host = portal_host(mode, address, model, devices.split(","), Work(ROWS, 0, ROWS), finds_slow=True)
    submodel = host.submodel
    running = asyncio.create_task(host.run())
    await host.formed.wait()
    noticed: dict[str, float] = {}
    looking = asyncio.create_task(_look(host, noticed))
    hidden = torch.randn(ROWS, submodel.hidden_size, generator=torch.Generator().manual_seed(1))
    ends = time.monotonic() + float(seconds)
    while time.monotonic() < ends:
        began = time.monotonic()
        outputs = await submodel.read(hidden, [ROWS])
        state = host.state()
        told = {member.name: member.state for member in state.members}
        check = round(float(outputs.double().abs().sum()), 2)
        took = time.monotonic() - began
        said = {"at": time.monotonic(), "s": took, "check": check, "noticed": dict(noticed)}
        print(json.dumps(said | told), flush=True)
    for task in (looking, running):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _look(host: GroupHost, noticed: dict[str, float]) -> None:
    """Keep in ``noticed`` since when each member that is slow has been said to be: texts may take long meanwhile."""
    while True:
        for member in host.state().members:
            if member.state == "working" and not member.why:
                noticed.pop(member.name, None)
            elif member.state == "slow" or member.why:
                noticed.setdefault(member.name, time.monotonic())
        await asyncio.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    torch.set_num_threads(1)
    configure_logs("portal", "info", "text")
    asyncio.run(main())
