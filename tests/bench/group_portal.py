"""The portal of a group that is measured beside its rivals; it computes its part.

    python -m bench.group_portal ADDRESS:PORT MODE DEVICES CHECKPOINT PROMPT NEW

One line of JSON: tokens a second of a prompt of so many rows, and of so many tokens behind it, head included.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import torch

from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.group.host import GroupHost
from device_agent.planning.even import plan_evenly
from device_agent.planning.shape import ModelShape
from split_model.checkpoint import Checkpoint
from split_model.stack import Embedding, Head

FORMED_WITHIN_S = 300.0


async def main() -> None:
    """Form the group, run the prompt and the tokens once before they are measured, and say how long they took."""
    where, mode, devices, path, prompt, new = sys.argv[1:]
    rows, count = int(prompt), int(new)
    checkpoint, dtype = Checkpoint.open(Path(path)), torch.bfloat16
    spec = checkpoint.spec
    shape = ModelShape.of(spec, "bfloat16")
    embedding = Embedding.load(checkpoint, dtype, "cpu")
    head = Head.load(checkpoint, spec, dtype, embedding, "cpu")
    group = GroupSubmodel(spec.hidden_size, dtype)
    host = GroupHost(
        checkpoint=checkpoint,
        submodel=group,
        planner=lambda measured, names: plan_evenly(mode, shape, names, "device-1"),
        wanted=[f"device-{number}" for number in range(1, int(devices) + 1)],
        first_layer=0,
        dtype="bfloat16",
        key=os.environ["TRILBY_GROUP_KEY"],
        address=where.rpartition(":")[0],
        port=int(where.rpartition(":")[2]),
        positions=rows + count,
        name="device-1",
    )
    running = asyncio.create_task(host.run())
    await asyncio.wait_for(host.formed.wait(), FORMED_WITHIN_S)
    ids = list(range(3, 3 + rows))
    for _ in range(2):
        session = group.open(rows + count)
        began = time.perf_counter()
        token = int(head.forward(await session.forward(embedding.forward(ids), 1))[-1].argmax())
        read = time.perf_counter()
        for _ in range(count):
            token = int(head.forward(await session.forward(embedding.forward([token]), 1))[-1].argmax())
        ended = time.perf_counter()
        session.close()
    print(json.dumps({"prompt": rows / (read - began), "generated": count / (ended - read)}), flush=True)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(main())
