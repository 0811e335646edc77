"""The device that a drafted cell asks: the product's own agent, in one process, without a gateway before it.

    python -m bench.streamed.drafted_portal

A line of JSON comes in for each job, and one goes out: the tokens, and how long they took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress

import msgspec
import torch

from device_agent.agent_process import Device
from device_agent.build import build
from device_agent.config import DeviceConfig
from device_agent.group.host import GroupEnded
from device_agent.speculative.generation import Generation
from drafting.choosing import Chooser
from service.logs import configure_logs
from split_model.offload.load_counts import LoadCounts
from split_model.sampling import SamplingParams

CONNECTED_WITHIN_S = 120.0


class Job(msgspec.Struct, frozen=True):
    """One cell.

    Attributes:
        settings: of ``DeviceConfig``.
        prompts: token ids.
        new: most tokens of each answer.
        at_once: answers that are generated together.
    """

    settings: dict[str, str | int | list[str]]
    prompts: list[list[int]]
    new: int
    at_once: int = 1


class Said(msgspec.Struct, frozen=True):
    """One answer: its tokens, seconds from the first of them to the last, rounds, and drafted tokens."""

    tokens: list[int]
    seconds: float
    rounds: int
    proposed: int
    accepted: int


class Result(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        refused: why there is nothing.
        draft: what drafted.
        answers: of each prompt.
        seconds: of all answers, their prompts included.
        read_mb_s: what was read from the disk meanwhile, 10^6 bytes a second, where the model is on one device.
        round_ms, row_ms, draft_ms: what a verification of one row, each further row, and a step of drafting are
            believed to take at the end.
    """

    refused: str = ""
    draft: str = ""
    answers: list[Said] = []
    seconds: float = 0.0
    read_mb_s: float = 0.0
    round_ms: float = 0.0
    row_ms: float = 0.0
    draft_ms: float = 0.0


async def do(job: Job) -> Result:
    """One job, from a model that is not loaded to the last token."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in job.settings.items()}
    try:
        device = build(DeviceConfig(**given))  # type: ignore[arg-type]
    except ValueError as error:
        return Result(str(error))
    remote = device.remote
    running = asyncio.create_task(remote.run()) if remote is not None else None
    try:
        if remote is not None and running is not None:
            deadline = time.monotonic() + CONNECTED_WITHIN_S
            while not remote.connected:
                if running.done() or time.monotonic() > deadline:
                    return Result(repr(running.exception()) if running.done() else "the group has not formed")
                with suppress(TimeoutError):
                    await asyncio.wait_for(remote.news(), 1.0)
        loader = device.loader
        before = loader.counts if loader is not None else LoadCounts()
        answers, began, waiting = list[Said](), time.perf_counter(), list(job.prompts)
        while waiting:
            now, waiting = waiting[: job.at_once], waiting[job.at_once :]
            answers += await asyncio.gather(*(_answer(device, each, job.new) for each in now))
        took, costs = time.perf_counter() - began, device.writer.ways.get("").costs
        read = (loader.counts - before).bytes_read if loader is not None else 0
        return Result(
            "",
            device.writer.ways.get("").name,
            answers,
            took,
            read / took / 1e6,
            1e3 * costs.round_s,
            1e3 * costs.row_s,
            1e3 * costs.draft_s,
        )
    finally:
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError, GroupEnded):
                await running
        device.stop()


async def _answer(device: Device, prompt: list[int], new: int) -> Said:
    model = device.writer
    way = model.ways.get("")
    session = model.chain.open(len(prompt) + new, len(prompt), len(prompt) + new, way.drafter)
    ends = model.tokenizer.end_ids
    chooser = Chooser(SamplingParams(), prompt, 0, end_ids=ends, max_tokens=new)
    generation, tokens, at = Generation(session, chooser, way), list[int](), list[float]()
    try:
        async for chosen in generation.run():
            tokens.append(chosen.token)
            at.append(time.perf_counter())
    finally:
        session.close()
    tally = generation.tally
    return Said(tokens, at[-1] - at[0], tally.rounds, tally.proposed, tally.accepted)


async def main() -> None:
    """Job after job, until no more come."""
    print(msgspec.json.encode({"ready": True}).decode(), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        said = await do(msgspec.json.decode(line, type=Job))
        print(msgspec.json.encode(said).decode(), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    configure_logs("portal", "info", "text")
    asyncio.run(main())
