"""The first device of a measured group: it has the tokens, and computes its part.

    python -m bench.streamed.portal ADDRESS CHECKPOINT BUDGET

A line of JSON comes in for each job, and one goes out: what was planned, how long it took, and the tokens.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import torch
from bench.edge.job import PORT, SECRET
from bench.streamed.cases import DTYPE
from bench.streamed.methods import METHODS

from device_agent.group.host import GroupEnded, GroupHost
from device_agent.group.submodel import GroupSubmodel
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan
from device_agent.planning.profile import Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from service.logs import configure_logs
from split_model.checkpoint import Checkpoint
from split_model.stack import Embedding, Head

FORMED_WITHIN_S = 300.0


class Job(msgspec.Struct, frozen=True):
    """One cell.

    Attributes:
        devices: names, the portal's first.
        prompts: token ids of each session.
        new: tokens of each.
    """

    method: str
    devices: list[str]
    prompts: list[list[int]]
    new: int


class Result(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        refused: why the method cannot; the rest is empty then.
        plan: for people: what each device has.
        streamed: bytes that each member reads for a step.
        predicted_s: of a step of all sessions.
        formed_s, prompt_s: until the group worked, and until all prompts were read.
        generated_s: from then on until the last token.
        tokens: of each session.
    """

    refused: str = ""
    plan: list[str] = []
    streamed: list[int] = []
    predicted_s: float = 0.0
    formed_s: float = 0.0
    prompt_s: float = 0.0
    generated_s: float = 0.0
    tokens: list[list[int]] = []


class Portal:
    """Of one process; a group for each job."""

    def __init__(self, address: str, path: str, budget: int) -> None:
        self._address, self._budget = address, budget
        self._checkpoint = Checkpoint.open(path)
        self._spec = self._checkpoint.spec
        self._shape = ModelShape.of(self._spec, DTYPE)
        dtype = getattr(torch, DTYPE)
        self._embedding = Embedding.load(self._checkpoint, dtype)
        self._head = Head.load(self._checkpoint, self._spec, dtype, self._embedding)

    async def do(self, job: Job) -> Result:
        """One job, from the members' coming to the last token."""
        spec, began = self._spec, time.perf_counter()
        rows = len(job.prompts[0])
        work = Work(rows, job.new, sessions=len(job.prompts))
        submodel = GroupSubmodel(spec.hidden_size, getattr(torch, DTYPE), max_positions=spec.max_positions)
        made: list[tuple[Task, GroupPlan]] = []
        lacks: list[str] = []

        def planner(profile: Profile, names: Sequence[str]) -> GroupPlan:
            task = Task(self._shape, profile, tuple(names), job.devices[0], work)
            try:
                made.append((task, METHODS[job.method][1](task)))
            except DoesNotFit as error:
                lacks.append(str(error))
                raise
            return made[-1][1]

        host = GroupHost(
            checkpoint=self._checkpoint,
            submodel=submodel,
            planner=planner,
            wanted=job.devices,
            first_layer=0,
            dtype=DTYPE,
            key=SECRET,
            address=self._address,
            port=PORT,
            positions=work.positions,
            budget=self._budget,
            name=job.devices[0],
            measured=True,
        )
        running, formed = asyncio.create_task(host.run()), asyncio.create_task(host.formed.wait())
        try:
            while not formed.done() and not lacks:
                waits = [running, formed]
                await asyncio.wait(waits, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
                if running.done() or time.perf_counter() - began > FORMED_WITHIN_S:
                    break
            if lacks:
                return Result(lacks[0])
            if not formed.done():
                why = repr(running.exception()) if running.done() else "the group was not formed in time"
                return Result(why)
            at = time.perf_counter()
            sessions = [submodel.open(work.rows + work.new) for _ in job.prompts]
            tokens = [[await self._next(session, ids)] for session, ids in zip(sessions, job.prompts, strict=True)]
            prompted = time.perf_counter()
            await asyncio.gather(*(self._go_on(*each, job.new) for each in zip(sessions, tokens, strict=True)))
            ended = time.perf_counter()
            for session in sessions:
                session.close()
            task, plan = made[-1]
            return Result(
                "",
                [f"{member.name}: {member.layers}" for member in host.state().members],
                [
                    sum(plan.unit_bytes(self._shape, member, unit) for unit in units)
                    for member, units in enumerate(plan.streamed)
                ],
                task.step(plan).seconds,
                at - began,
                prompted - at,
                ended - prompted,
                tokens,
            )
        finally:
            formed.cancel()
            running.cancel()
            with suppress(asyncio.CancelledError, GroupEnded):
                await running

    async def _next(self, session: Any, ids: list[int]) -> int:
        rows = await session.forward(self._embedding.forward(ids), 1)
        return int(self._head.forward(rows)[-1].argmax())

    async def _go_on(self, session: Any, tokens: list[int], new: int) -> None:
        for _ in range(new):
            tokens.append(await self._next(session, tokens[-1:]))


async def main() -> None:
    """Job after job, until no more come."""
    portal = Portal(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(msgspec.json.encode({"ready": True}).decode(), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        said = await portal.do(msgspec.json.decode(line, type=Job))
        print(msgspec.json.encode(said).decode(), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    configure_logs("portal", "info", "text")
    asyncio.run(main())
