"""A client's time to its first token beside a greedy one, against alone: one client must never starve another.

    PYTHONPATH=tests python -m bench.greedy [--rounds 4] [--tries 4] [--quick] [--json]

Real processes on loopback, each with its command line, and two API keys. A round asks for B's first token a few times
with nobody else there, then as often beside A, who has posted one request of 128 choices of 1500 tokens and 80 of one
choice, and posts each again when it is refused. Then A hangs up. B's prompts are all different, of the same length.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from bench.page import machine, table
from bench.runs import spread
from installation import Installation
from processes import with_paths
from tqdm import tqdm

BAR = 2.0
"""B's time to first token beside A, at most so many times as alone."""

CHOICES = 128
TOKENS = 1500
FURTHER = 80
PATIENCE_S = 60.0
"""For one answer of B's, and for A's first token."""

SETTLED_S = 2.0
"""For A's requests that were posted at once to have arrived, and its answers to run."""

PAUSE_S = 0.2
"""Between two tries, so that they see more than one moment of A's answers."""

KEYS = ("--api-keys", "key-of-a,key-of-b")
NOUNS = ["fox", "owl", "cat", "dog", "hen", "cow", "pig", "bee", "ant", "elk"]


@dataclass
class Seen:
    """B's times to the first token, in seconds; what became of its requests and of A's, by status."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    b: Counter[int] = field(default_factory=Counter)
    a: Counter[int] = field(default_factory=Counter)

    @property
    def ratio(self) -> float:
        """Of the medians, beside to alone."""
        return statistics.median(self.beside) / statistics.median(self.alone)


def body(prompt: str, tokens: int, n: int = 1) -> dict[str, Any]:
    """A streamed chat request whose answer has all its tokens."""
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "max_tokens": tokens, "n": n, "ignore_eos": True, "stream": True, "temperature": 1.0}


async def first_token_s(client: httpx.AsyncClient, seen: Seen) -> float | None:
    """B asks for five tokens: when the first is there, None where it is refused. The answer is read to its end."""
    prompt = f"Tell me a story about {random.choice(NOUNS)} number {random.randrange(10**6):06d}."
    began, first = time.perf_counter(), None
    headers = {"Authorization": "Bearer key-of-b"}
    async with client.stream("POST", "/chat/completions", json=body(prompt, 5), headers=headers) as response:
        seen.b[response.status_code] += 1
        if response.status_code != 200:
            return None
        async for line in response.aiter_lines():
            if first is None and '"content":' in line and '"role"' not in line:
                first = time.perf_counter() - began
    return first


async def be_greedy(base: str, statuses: Counter[int], working: asyncio.Event) -> None:
    """Post A's requests, each again when it ends; for ever."""
    headers = {"Authorization": "Bearer key-of-a"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=base, trust_env=False, timeout=None, limits=limits, headers=headers
    ) as client:

        async def ask(n: int) -> None:
            while True:
                request = body("Tell me a story about a fox.", TOKENS, n)
                async with client.stream("POST", "/chat/completions", json=request) as response:
                    statuses[response.status_code] += 1
                    async for line in response.aiter_lines():
                        if '"content":' in line and '"role"' not in line:
                            working.set()
                await asyncio.sleep(float(response.headers.get("retry-after", 0)))

        first = asyncio.create_task(ask(CHOICES))
        await asyncio.wait_for(working.wait(), PATIENCE_S)
        await asyncio.gather(first, *(ask(1) for _ in range(FURTHER)))


async def client_a(base: str) -> None:
    """Client A: says a line when its answers run, ends with its standard input, and then says its statuses."""
    statuses: Counter[int] = Counter()
    working = asyncio.Event()
    asking = asyncio.create_task(be_greedy(base, statuses, working))
    await working.wait()
    print("working", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    print(json.dumps(statuses), flush=True)


@asynccontextmanager
async def greedy(base: str, seen: Seen) -> AsyncIterator[None]:
    """A at work, in a process of its own, until the block is left and nothing of it runs any more."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.greedy", "--client-a", base, stdin=pipe, stdout=pipe, env=with_paths()
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        await asyncio.sleep(SETTLED_S)
        yield
    finally:
        process.stdin.close()
        said = await asyncio.wait_for(process.stdout.read(), PATIENCE_S)
        await process.wait()
    seen.a.update({int(status): times for status, times in json.loads(said).items()})
    async with httpx.AsyncClient(trust_env=False, headers={"Authorization": "Bearer key-of-a"}) as client:
        state = base.removesuffix("/v1") + "/state"
        while any(agent["running"] for agent in (await client.get(state)).json()["agents"]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def measure(base: str, rounds: int, tries: int) -> Seen:
    """B alone and beside A, in turns."""
    seen = Seen()
    async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=PATIENCE_S) as client:
        for _ in range(3):  # Whatever is slow only once.
            await first_token_s(client, Seen())
        for _ in tqdm(range(rounds), leave=False):
            await _tries(client, tries, seen.alone, seen)
            async with greedy(base, seen):
                await _tries(client, tries, seen.beside, seen)
    return seen


async def _tries(client: httpx.AsyncClient, tries: int, times: list[float], seen: Seen) -> None:
    for _ in range(tries):
        await asyncio.sleep(PAUSE_S)
        first = await first_token_s(client, seen)
        if first is not None:
            times.append(first)


def report(seen: Seen) -> str:
    """A small table."""
    rows = [
        [
            name,
            spread([each * 1e3 for each in times], 0),
            f"{min(times) * 1e3:.0f} … {max(times) * 1e3:.0f}",
            str(len(times)),
        ]
        for name, times in (("B alone", seen.alone), ("B beside A", seen.beside))
    ]
    told = table(["", "first token after, ms: median (quartiles)", "range", "tries"], rows)
    return (
        f"{told}\n\nRatio of the medians: **{seen.ratio:.2f}** (bar: at most {BAR:g}). Statuses of B: {dict(seen.b)}, "
        f"of A: {dict(seen.a)}. Measured on {machine()}."
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tries", type=int, default=4, help="of B in each round, alone and beside A")
    parser.add_argument("--quick", action="store_true", help="one round of two tries")
    parser.add_argument("--client-a", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="times in seconds instead of a table")
    options = parser.parse_args()
    if options.client_a:
        return asyncio.run(client_a(options.client_a))
    rounds, tries = (1, 2) if options.quick else (options.rounds, options.tries)
    with tempfile.TemporaryDirectory() as folder, Installation(Path(folder), gateway_settings=KEYS) as installation:
        seen = asyncio.run(measure(installation.base, rounds, tries))
    if options.json:
        told = {"alone_s": seen.alone, "beside_s": seen.beside, "ratio": seen.ratio, "statuses_b": seen.b}
        print(json.dumps(told | {"statuses_a": seen.a}))
    else:
        print(report(seen))


if __name__ == "__main__":
    main()
