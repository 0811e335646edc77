"""Where the requests of a measured group come in: a device that has tokens and computes nothing.

    python -m bench.edge.portal ADDRESS

A line of JSON comes in for each job, with the names of its members; one goes out once all have loaded. Another line
comes in when it may begin, and its result goes out.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import nullcontext
from typing import Any, Union

import msgspec
import torch
from bench.edge.job import (
    BEGIN,
    LOADED,
    PORT,
    REPORT,
    SECRET,
    WITHIN_S,
    Job,
    LinksJob,
    ProductsJob,
    Report,
    Result,
    TrialJob,
)
from bench.edge.shapes import SHAPES

from device_agent.group.asking.asks import GroupAsk
from device_agent.group.asking.life import GroupLife
from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.group.formation.trying import measured as tried
from device_agent.group.messages.heads import MannerHead
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.trials import Trial
from peers.board import PeerLost
from peers.fabric import Fabric
from peers.group import Group
from peers.rendezvous import Rendezvous, listening
from split_model.pruning.kept import KeptHeads
from split_model.spec import ModelSpec

Times = tuple[list[float], list[float], float]


async def run(submodel: GroupSubmodel, spec: ModelSpec, job: Job) -> Times:
    """All forwards of a job: when each began and ended, and what the last prompt's outputs amount to."""
    began, ended = [], []
    sets = (evenly_kept(spec, job.out),) * job.layers if job.out else ()
    hidden = torch.randn(job.rows, spec.hidden_size, generator=torch.Generator().manual_seed(1)).to(submodel.dtype)
    outputs = hidden
    for _ in range(1 + job.runs):
        began.append(time.perf_counter())
        if not job.new and not sets:  # One shot: whole texts, of which nothing is kept.
            outputs = await submodel.read(hidden, [job.rows])
            ended.append(time.perf_counter())
            continue
        session = submodel.open(job.rows + job.new, sets=sets)
        # All rows, so that no layer is cheaper than the others.
        outputs = await session.forward(hidden, job.rows)
        ended.append(time.perf_counter())
        for _ in range(job.new):
            began.append(time.perf_counter())
            await session.forward(hidden[:1], 1)
            ended.append(time.perf_counter())
        session.close()
    return began, ended, float(outputs.double().abs().sum())


def evenly_kept(spec: ModelSpec, out: float) -> KeptHeads:
    """A layer without about such a share of its KV groups, one here and one there."""
    groups = spec.num_kv_heads
    kept = groups - round(out * groups)
    left = (group for group in range(groups) if (group + 1) * kept // groups > group * kept // groups)
    return KeptHeads.of_groups(left, spec.num_heads, spec.heads_per_group)


async def do(rendezvous: Rendezvous, epoch: int, job: Job, names: list[str]) -> Result:
    """One job, from its members' coming to their reports."""
    spec, plan = SHAPES[job.shape].spec(job.layers), JoinedPlan.read(job.plan)
    ranks = range(1, len(names) + 1)
    told = msgspec.json.encode(job)
    group = rendezvous.open(epoch, dict.fromkeys(ranks, told), dict(zip(ranks, names, strict=True)))
    why = "the job is done"
    try:
        fabric = await opened(rendezvous, group)
        life = GroupLife(fabric, plan.layers(spec), plan.ranks, None, narrows=bool(job.out))
        lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        life.start(lambda *reason: loop.call_soon_threadsafe(lost.set_result, reason))
        for rank in ranks:
            await asyncio.to_thread(group.board.get, f"{LOADED}{rank}", WITHIN_S)
        say({"loaded": True})
        await asyncio.to_thread(sys.stdin.readline)
        running = asyncio.create_task(settled_and_run(life, spec, job))
        await asyncio.wait([running, lost], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            raise PeerLost(str(lost.result()))
        await asyncio.to_thread(life.end)
        posted = [await asyncio.to_thread(group.board.get, f"{REPORT}{rank}", WITHIN_S) for rank in ranks]
        times, trial = running.result()
        return Result(*times, [msgspec.json.decode(each, type=Report) for each in posted], "", *trial)
    except PeerLost as error:
        why = str(error)
        return Result([], [], 0.0, [], why)
    finally:
        group.end(why)


async def settled_and_run(life: GroupLife, spec: ModelSpec, job: Job) -> tuple[Times, tuple[str, int]]:
    """A job on a life that has begun, and in which manner. Ends never where a member is lost meanwhile."""
    submodel = GroupSubmodel(spec.hidden_size, getattr(torch, job.dtype))
    trial = ("", 0)
    if job.trial is not None:
        trial = await settled(life, job.trial, torch.randn(job.trial.rows, spec.hidden_size).to(submodel.dtype))
    submodel.begin(life)
    return await run(submodel, spec, job), trial


async def settled(life: GroupLife, trial: Trial, hidden: torch.Tensor) -> tuple[str, int]:
    """As a group that forms does it, but for keeping what was found: the manner, and how many forwards that took."""
    seconds = await tried(life, trial, hidden)
    manner = trial.chosen(seconds)
    life.put(GroupAsk(MannerHead(manner)))
    return trial.words[trial.manners.index(manner)], sum(1 + len(runs) for runs in seconds.values())


async def measured(
    rendezvous: Rendezvous, epoch: int, job: LinksJob | ProductsJob | TrialJob, names: list[str]
) -> list[Any]:
    """What all members have measured of their links, or of their products. Raises PeerLost."""
    ranks, told = range(1, 1 + len(names)), msgspec.json.encode(job)
    group = rendezvous.open(epoch, dict.fromkeys(ranks, told), dict(zip(ranks, names, strict=True)))
    try:
        with await opened(rendezvous, group) if isinstance(job, LinksJob) else nullcontext():
            for rank in ranks:
                await asyncio.to_thread(group.board.get, f"{LOADED}{rank}", WITHIN_S)
            say({"loaded": True})
            await asyncio.to_thread(sys.stdin.readline)
            group.board.post(BEGIN, b"")
            posted = [await asyncio.to_thread(group.board.get, f"{REPORT}{rank}", WITHIN_S) for rank in ranks]
            return [msgspec.json.decode(each) for each in posted]
    finally:
        group.end("all is measured")


async def opened(rendezvous: Rendezvous, group: Group) -> Fabric:
    """The links to all members, once these have come."""
    return await asyncio.to_thread(
        Fabric.open, group.board, 0, group.size, rendezvous.address, epoch=group.epoch, within_s=WITHIN_S
    )


def say(what: object) -> None:
    """One line."""
    print(msgspec.json.encode(what).decode(), flush=True)


async def main() -> None:
    """Job after job, until no more come."""
    async with listening(sys.argv[1], PORT, SECRET) as rendezvous:
        say({"listens": True})
        epoch = 0
        while line := await asyncio.to_thread(sys.stdin.readline):
            epoch += 1
            names, job = msgspec.json.decode(line, type=tuple[list[str], Union[Job, LinksJob, ProductsJob, TrialJob]])
            doing = (
                do(rendezvous, epoch, job, names) if isinstance(job, Job) else measured(rendezvous, epoch, job, names)
            )
            say(await doing)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(main())
