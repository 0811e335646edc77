"""One device of a measured group, for as long as the measurement takes: it does job after job.

python -m bench.edge.member NAME HOST:PORT CORE
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Union

import msgspec
import torch
from bench.edge.burn import streaming_products
from bench.edge.job import BEGIN, LOADED, PORT, REPORT, SECRET, WITHIN_S, Job, LinksJob, ProductsJob, Report, TrialJob
from bench.edge.shapes import SHAPES
from bench.edge.watched import WatchedCollectives, WatchedWorker
from bench.edge.weights import RandomCheckpoint

from device_agent.group.holding.held import HeldLayer
from device_agent.group.holding.narrowing import Narrowing
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.profiling.compute import measured_seconds
from device_agent.profiling.links import measure_links
from peers.board import PeerLost
from peers.fabric import Fabric
from peers.membership import Membership, join
from wire.errors import ConnectionFailed

AGAIN_S = 0.3


def work(name: str, membership: Membership) -> None:
    """One job, to the report; blocks."""
    job = msgspec.json.decode(membership.plan, type=Union[Job, LinksJob, ProductsJob, TrialJob])
    if isinstance(job, Job):
        run(job, name, membership)
    elif isinstance(job, LinksJob):
        measure(job, membership)
    else:
        measure_products(job, membership)


def measure(job: LinksJob, membership: Membership) -> None:
    """What links carry, and exchanges in the ring of all but the portal."""
    rank, size, board = membership.rank, membership.size, membership.board
    with Fabric.open(board, rank, size, membership.address, epoch=membership.epoch) as fabric:
        board.post(f"{LOADED}{rank}", b"")
        board.get(BEGIN, WITHIN_S)
        found = measure_links(fabric, job.names, ring=range(1, size))
        board.post(f"{REPORT}{rank}", msgspec.json.encode(found))
        with suppress(PeerLost):  # The portal ends it once it has all.
            board.get("end", WITHIN_S)


def measure_products(job: ProductsJob | TrialJob, membership: Membership) -> None:
    """CPU seconds of each part, or of a trial; who is done goes on computing until all are."""
    rank, board, products = membership.rank, membership.board, streaming_products()
    next(products)
    board.post(f"{LOADED}{rank}", b"")
    board.get(BEGIN, WITHIN_S)
    found: object
    if isinstance(job, TrialJob):
        began = time.thread_time()
        for _ in range(job.products):
            next(products)
        found = time.thread_time() - began
    else:
        shape = SHAPES[job.shape]
        checkpoint = RandomCheckpoint(replace(shape.spec(shape.swept), max_positions=job.rows))
        found = measured_seconds(checkpoint, getattr(torch, job.dtype), quick=True, clock=time.thread_time)
    board.post(f"{REPORT}{rank}", msgspec.json.encode(found))
    with suppress(PeerLost):
        while not board.has(["end"]):
            next(products)


def run(job: Job, name: str, membership: Membership) -> None:
    """A plan, from its layers on."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # What is free is given back, and the peak is now.
    base = memory_kb("VmRSS")
    spec = SHAPES[job.shape].spec(job.layers)
    plan = JoinedPlan.read(job.plan)
    rank, board, dtype = membership.rank, membership.board, getattr(torch, job.dtype)
    place = plan.ranks.index(rank)
    checkpoint = RandomCheckpoint(spec)
    layers = enumerate(plan.layers(spec))
    held = [HeldLayer.load(checkpoint, layer, number, place, dtype) for number, layer in layers]
    with Fabric.open(board, rank, membership.size, membership.address, epoch=membership.epoch) as fabric:
        collectives = WatchedCollectives(fabric, plan.ranks, plan.one_shot_bytes)
        narrowing = Narrowing(checkpoint, 0, held, place, sys.maxsize) if job.out else None
        worker = WatchedWorker(spec, held, dtype, collectives, plan.ranks, place, narrowing=narrowing)
        worker.watch, worker.moments = collectives, []
        board.post(f"{LOADED}{rank}", b"")
        worker.serve()
        sent: dict[str, int] = {}
        received: dict[str, int] = {}
        for (label, _), found in fabric.counts.by_label().items():
            sent[label] = sent.get(label, 0) + found.sent
            received[label] = received.get(label, 0) + found.received
        weights = sum(each.loaded_bytes for each in held)
        report = Report(name, worker.moments, sent, received, weights, base, memory_kb("VmHWM"))
        board.post(f"{REPORT}{rank}", msgspec.json.encode(report))


def memory_kb(what: str) -> int:
    """Of this process, as the kernel calls it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


async def main() -> None:
    """Join whatever group is formed, until this process is ended."""
    name, where, core = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    while True:
        try:
            async with join(f"{where}:{PORT}", SECRET, name) as membership:
                running = asyncio.create_task(asyncio.to_thread(work, name, membership))
                both: list[asyncio.Future[Any]] = [running, membership.ended]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                try:
                    await asyncio.wait_for(running, WITHIN_S)
                except (PeerLost, RuntimeError, ValueError) as error:
                    print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                await asyncio.wait([membership.ended], timeout=WITHIN_S)
        except (OSError, ConnectionFailed):
            pass
        await asyncio.sleep(AGAIN_S)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(main())
