"""Many devices on one cloud server for a while: no error, flat memory, and every page free at the end.

    PYTHONPATH=tests python -m bench.soak [--devices 64] [--requests 10] [--quick]

One cloud server, a process of its own, with the demo model in float32. The devices are in this process: each has a
websocket of its own, all share one copy of the parts and one compute thread. Each asks one request after another, of
varied lengths. Some of the answers are compared with what transformers generates.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch
from bench.page import machine, table, write_section
from checkpoints import DEMO
from clouds import device_hello, greedy, remote_middle
from oracle import oracle_logits, oracle_tokens, tolerance
from processes import cloud_process
from tqdm import tqdm

from device_agent.chain.chain import Chain
from device_agent.chain.model_ends import DeviceParts
from device_agent.sharing.compute import Compute
from service.logs import configure_logs
from split_model.checkpoint import Checkpoint
from wire.errors import SessionFailed

SPLIT = 2
CHUNK = 0
"""As the cloud advises."""

CHECKED = 12
"""Answers that are compared with transformers."""

EMPTY_WITHIN_S = 5.0


@dataclass(frozen=True)
class Size:
    """``requests`` of each of ``devices``; prompts and answers have at most so many tokens. The server is looked at
    every ``sample_s`` seconds."""

    devices: int
    requests: int
    prompt: int = 400
    answer: int = 64
    sample_s: float = 0.25


@dataclass
class Soak:
    """What was seen; ``memory`` has the server's resident bytes at the time of each sample."""

    answers: list[tuple[tuple[int, ...], list[int]]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    seconds: float = 0.0
    left: dict[str, int] = field(default_factory=dict)

    @property
    def slope_mb_min(self) -> float:
        """By how much the memory grew in a minute, a straight line through the second half of the samples."""
        second = self.memory[len(self.memory) // 2 :]
        slope, _ = statistics.linear_regression([at for at, _ in second], [held / 1e6 for _, held in second])
        return slope * 60

    @property
    def level_mb(self) -> float:
        """The memory in the second half."""
        return statistics.mean(held for _, held in self.memory[len(self.memory) // 2 :]) / 1e6


async def one_device(
    url: str, number: int, ends: tuple[DeviceParts, Compute], size: Size, soak: Soak, answered: Callable[[], object]
) -> None:
    """One device: connect, and ask one request after another."""
    noise = random.Random(number)
    async with remote_middle(url, device_hello(DEMO, SPLIT, 0)) as remote:
        parts, compute = ends
        chain = Chain(parts, remote, compute, CHUNK)
        for _ in range(size.requests):
            prompt = tuple(noise.choices(range(parts.spec.vocab_size), k=noise.randint(1, size.prompt)))
            try:
                tokens = await greedy(chain, list(prompt), noise.randint(1, size.answer))
            except SessionFailed as failure:
                soak.errors[failure.code.value] += 1
            else:
                soak.answers.append((prompt, tokens))
            answered()


@asynccontextmanager
async def watching(pid: int, client: httpx.AsyncClient, size: Size, soak: Soak) -> AsyncIterator[None]:
    """Look at the server's memory, and at its pages in use, again and again."""

    async def sample_memory() -> None:
        process = psutil.Process(pid)
        while True:
            soak.memory.append((time.monotonic(), process.memory_info().rss))
            await asyncio.sleep(size.sample_s)

    async def sample_pages() -> None:
        while True:
            soak.pages.append((await state(client))["pages"]["used"])
            await asyncio.sleep(size.sample_s)

    tasks = [asyncio.create_task(sample_memory()), asyncio.create_task(sample_pages())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def state(client: httpx.AsyncClient) -> dict[str, Any]:
    """The server's /state."""
    return dict((await client.get("/state", timeout=60)).json())


async def run(pid: int, port: int, size: Size) -> Soak:
    """All devices at once, until every request is answered and the server has been left alone again."""
    soak, compute = Soak(), Compute()
    ends = DeviceParts.load(Checkpoint.open(DEMO), SPLIT, 0, torch.float32), compute
    # Loading certificates takes 20 ms, and there are none to check.
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False) as client:
        with tqdm(total=size.devices * size.requests, desc="requests", leave=False) as bar:
            async with watching(pid, client, size, soak):
                began = time.monotonic()
                await asyncio.gather(
                    *(
                        one_device(f"ws://127.0.0.1:{port}", number, ends, size, soak, bar.update)
                        for number in range(size.devices)
                    )
                )
                soak.seconds = time.monotonic() - began
        deadline = time.monotonic() + EMPTY_WITHIN_S
        while True:  # What the last devices closed may still be on its way.
            seen = await state(client)
            soak.left = {
                "pages": seen["pages"]["used"],
                "sessions": len(seen["sessions"]),
                "devices": len(seen["devices"]),
            }
            if not any(soak.left.values()) or time.monotonic() > deadline:
                break
            await asyncio.sleep(size.sample_s)
    compute.stop()
    return soak


def wrong_answers(soak: Soak) -> int:
    """How many of a sample of the answers are not what transformers generates."""
    wrong = 0
    for prompt, tokens in random.Random(0).sample(soak.answers, min(CHECKED, len(soak.answers))):
        expected = oracle_tokens(DEMO, prompt, len(tokens))
        other = next((at for at, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b), None)
        if other is not None:
            logits = oracle_logits(DEMO, prompt + tuple(expected[:other]))[-1]
            # Two tokens whose logits are as good as the same may come in either order.
            wrong += float((logits[expected[other]] - logits[tokens[other]]).abs()) > 2 * tolerance(logits)
    return wrong


def report(soak: Soak, size: Size) -> str:
    """The section of docs/benchmarks.md."""
    asked = size.devices * size.requests
    tokens = sum(len(answer) for _, answer in soak.answers)
    first = soak.memory[0][1] / 1e6
    lines = [
        ["requests, and those that failed", f"{asked}, **{sum(soak.errors.values())}**"],
        [
            "answers compared with transformers, and those that differ",
            f"{min(CHECKED, len(soak.answers))}, **{wrong_answers(soak)}**",
        ],
        ["pages in use at most, and at the end", f"{max(soak.pages)}, **{soak.left['pages']}**"],
        ["sessions and devices at the end", f"**{soak.left['sessions']}**, **{soak.left['devices']}**"],
        ["memory at the begin, and in the second half, MB", f"{first:.0f}, {soak.level_mb:.0f}"],
        [
            "growth over the second half, MB a minute (percent)",
            f"**{soak.slope_mb_min:+.2f}** ({soak.slope_mb_min / soak.level_mb:+.2%})",
        ],
    ]
    text = (
        f"Measured on {machine()}; {size.devices} devices with {size.requests} requests each, prompts of 1 to "
        f"{size.prompt} and answers of 1 to {size.answer} tokens, {tokens} tokens in all, {soak.seconds:.0f} s. "
        "Bars: none failed, none differs, nothing left, memory flat.\n\n"
    )
    errors = "".join(f"\n\n{count} requests ended with {code}." for code, count in soak.errors.items())
    return text + table(["what", "seen"], lines) + errors


def main() -> None:
    """Run; write the table unless --quick."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10, help="requests of each device")
    parser.add_argument("--quick", action="store_true", help="a few devices and short requests, nothing written")
    options = parser.parse_args()
    size = Size(6, 2, prompt=40, answer=8, sample_s=0.02) if options.quick else Size(options.devices, options.requests)
    torch.set_num_threads(1)
    configure_logs("device", "error")
    with tempfile.TemporaryDirectory() as folder, cloud_process(DEMO, SPLIT, 0, Path(folder, "cloud.log")) as cloud:
        assert cloud.process is not None
        soak = asyncio.run(run(cloud.process.pid, cloud.port, size))
    text = report(soak, size)
    print(text)
    if not options.quick:
        write_section("soak", text)


if __name__ == "__main__":
    main()
