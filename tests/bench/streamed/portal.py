"""The first device of a measured group: it has the tokens, and computes its part.

    python -m bench.streamed.portal ADDRESS CHECKPOINT BUDGET

A line of JSON comes in for each job, and one goes out for each token of the first session, and one at the end: what was
planned, how long it took, and the tokens.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import ceil
from typing import Any

import msgspec
import torch
from bench.edge.job import PORT, SECRET
from bench.streamed.cases import DTYPE, LEAST, MOST_S, out_of_time_s
from bench.streamed.methods import METHODS

from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.group.host import GroupEnded, GroupHost
from device_agent.planning.costs import MemberCosts
from device_agent.planning.interleaved import play_steps
from device_agent.planning.lan import Lan
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.profile import Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from service.logs import configure_logs
from split_model.checkpoint import Checkpoint
from split_model.stack import Embedding, Head

FORMED_WITHIN_S = 300.0
OUT_OF_TIME = "out of time"


class Job(msgspec.Struct, frozen=True):
    """One cell.

    Attributes:
        devices: names, the portal's first.
        prompts: token ids of each session.
        new: tokens of each.
        room: of each session, see `Cell`.
        planned: for how many sessions it is planned; 0: for these.
    """

    method: str
    devices: list[str]
    prompts: list[list[int]]
    new: int
    room: int = 0
    planned: int = 0


class Result(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        refused: why the method cannot; the rest is empty then.
        plan: for people: what each device has.
        streamed: bytes that each member reads for a step.
        predicted_s: of a step of all sessions.
        bound_s: the least that any order of these layers, reads and hops takes; 0 where layers are shared.
        hidden: of each member that reads, the share of the reading that nobody waited for.
        planned_hidden: the same of all members, as planned.
        formed_s, prompt_s: until the group worked, and until all prompts were read.
        generated_s: from then on until the last token.
        steps_s: when each token of the first session was there, from then on.
        tokens: of each session.
    """

    refused: str = ""
    plan: list[str] = []
    streamed: list[int] = []
    predicted_s: float = 0.0
    bound_s: float = 0.0
    hidden: list[float] = []
    planned_hidden: float = 1.0
    formed_s: float = 0.0
    prompt_s: float = 0.0
    generated_s: float = 0.0
    steps_s: list[float] = []
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
        work = Work(rows, job.new, sessions=job.planned or len(job.prompts), room=job.room)
        planner_of = METHODS[job.method].planner
        assert planner_of is not None
        submodel = GroupSubmodel(spec.hidden_size, getattr(torch, DTYPE), max_positions=spec.max_positions)
        made: list[tuple[Task, GroupPlan]] = []
        refused: list[str] = []
        most_s = out_of_time_s(work.sessions)

        def planner(profile: Profile, names: Sequence[str]) -> GroupPlan:
            task = Task(self._shape, profile, tuple(names), job.devices[0], work)
            try:
                plan = planner_of(task)
            except DoesNotFit as error:
                refused.append(str(error))
                raise
            if (token_s := task.step(plan).seconds / work.sessions) > most_s:
                refused.append(f"{OUT_OF_TIME}: planned {token_s:.1f} s a token, more than {most_s:g}")
                raise DoesNotFit(job.method, ())
            made.append((task, plan))
            return plan

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
            while not formed.done() and not refused:
                waits = [running, formed]
                await asyncio.wait(waits, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
                if running.done() or time.perf_counter() - began > FORMED_WITHIN_S:
                    break
            if refused:
                return Result(refused[0])
            if not formed.done():
                why = repr(running.exception()) if running.done() else "the group was not formed in time"
                return Result(why)
            task, plan = made[-1]
            step_s = task.step(plan).seconds
            new = max(LEAST, min(job.new, int(MOST_S / step_s)))
            at = time.perf_counter()
            sessions = [submodel.open(max(work.rows + new, job.room)) for _ in job.prompts]
            pairs = zip(sessions, job.prompts, strict=True)
            tokens = [[first] for first in await asyncio.gather(*(self._next(*each) for each in pairs))]
            prompted = time.perf_counter()
            steps: list[float] = []
            await asyncio.gather(
                *(
                    self._go_on(session, ids, new, None if number else lambda: _note(steps, prompted))
                    for number, (session, ids) in enumerate(zip(sessions, tokens, strict=True))
                )
            )
            ended = time.perf_counter()
            for session in sessions:
                session.close()
            bound_s, planned_hidden = _bound_of(task, plan)
            members = host.state().members
            return Result(
                plan=[f"{member.name}: {member.layers}" for member in members],
                streamed=[
                    sum(plan.unit_bytes(self._shape, member, unit) for unit in units)
                    for member, units in enumerate(plan.streamed)
                ],
                predicted_s=step_s,
                bound_s=bound_s,
                hidden=[member.hidden for member in members if member.hidden is not None],
                planned_hidden=planned_hidden,
                formed_s=at - began,
                prompt_s=prompted - at,
                generated_s=ended - prompted,
                steps_s=steps,
                tokens=tokens,
            )
        finally:
            formed.cancel()
            running.cancel()
            with suppress(asyncio.CancelledError, GroupEnded):
                await running

    async def _next(self, session: Any, ids: list[int]) -> int:
        rows = await session.forward(self._embedding.forward(ids), 1)
        return int(self._head.forward(rows)[-1].argmax())

    async def _go_on(self, session: Any, tokens: list[int], new: int, note: Callable[[], object] | None) -> None:
        for _ in range(new):
            tokens.append(await self._next(session, tokens[-1:]))
            if note is not None:
                note()


def _note(steps: list[float], since: float) -> None:
    steps.append(time.perf_counter() - since)
    print(json.dumps({"step": len(steps)}), flush=True)


def _bound_of(task: Task, plan: GroupPlan) -> tuple[float, float]:
    """Of a step of a pipeline; and how much of its reading the plan hides. Nothing is known so of shared layers."""
    if not all(isinstance(layer, Whole) for layer in plan.layers):
        return 0.0, 1.0
    lan, step = Lan(task.profile, plan.members, plan.portal), task.work.step
    costs = MemberCosts(task.shape, lan)
    played = play_steps(task.shape, lan, costs, plan, ceil(step.rows / plan.micro_batches), step.cached)
    return played.bound, played.hidden


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
