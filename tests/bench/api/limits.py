"""A key's limits under 200 callers at once, over two gateways that share a real redis-server: none is exceeded."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from bench.api.answering_agent import MODEL, PROMPT_TOKENS, WORDS
from bench.api.caller import Caller, request_of
from bench.api.rates import until_ready
from bench.page import table
from processes import Process, free_port
from redis_here import NEEDS, RedisServer

CALLERS = 200
QUICK_S: Final = 6.0
WINDOW_S: Final = 60.0
PAUSE_S: Final = 0.25
"""Between a refusal and the next request of the same caller: 200 that do not wait at all measure the processor."""

KEY: Final = "sk-limits"
TOKEN: Final = "what-the-gateways-share"
OVER: Final = 0.01

REQUESTS, CONCURRENT, GAP_MS = 600, 16, 40.0
TOKENS: Final = 12_000
"""Requests and tokens a minute, requests at once; and between tokens where those at once are limited, so that each is
open for a third of a second."""

PROMPT: Final = "Please tell me in a few words who you are, what you can do, and what you had rather not be asked."
"""Its characters count as more tokens than the agent says it has. Where a prompt has more than they count as, what is
beyond comes on top until its answer has ended."""


@dataclass
class Limited:
    """When requests that were let in were sent and answered, how many were refused (429), the most that agents had at
    one time, and how often a gateway lost redis meanwhile."""

    granted: list[tuple[float, float]] = field(default_factory=list)
    refused: int = 0
    others: int = 0
    at_once: int = 0
    losses: int = 0

    def most_within(self, window_s: float) -> int:
        """Of requests let in, the most whose whole time is within so many seconds: all of these were let in there."""
        most, first = 0, 0
        by_end = sorted(self.granted, key=lambda each: each[1])
        for last, (_, end) in enumerate(by_end):
            inside = sum(begin >= end - window_s for begin, _ in by_end[first : last + 1])
            while by_end[first][1] < end - window_s:
                first += 1
            most = max(most, inside)
        return most


async def press(ports: Sequence[int], seconds: float) -> Limited:
    """All callers, half of them at each gateway, for so long."""
    seen, until, loop = Limited(), time.monotonic() + seconds, asyncio.get_running_loop()
    body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": len(WORDS)}

    async def caller(port: int) -> None:
        request = request_of(port, body, KEY)
        while time.monotonic() < until:
            status = 0

            def ended(found: int, took: float) -> bool:
                nonlocal status
                status = found
                return False

            began = time.monotonic()
            _, one = await loop.create_connection(lambda: Caller(request, ended), "127.0.0.1", port)
            await one.closed
            if status == 200:
                seen.granted.append((began, time.monotonic()))
            elif status == 429:
                seen.refused += 1
                await asyncio.sleep(PAUSE_S)
            else:
                seen.others += 1

    await asyncio.gather(*(caller(ports[number % len(ports)]) for number in range(CALLERS)))
    return seen


def at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The most requests that agents had at one time, each within the time for which it was let in."""
    moments = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    return max(itertools.accumulate(change for _, change in moments))


def pressed(settings: Sequence[str], gap_ms: float, seconds: float, folder: Path) -> Limited:
    """Two gateways with these limits, an agent at each, and all callers."""
    folder.mkdir()
    spans: list[Path] = []
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        shared = {"TRILBY_REDIS": redis.url, "TRILBY_GATEWAY_TOKEN": TOKEN, "TRILBY_API_KEYS": KEY}
        ports = [free_port(), free_port()]
        for port in ports:
            words = ("--port", str(port), "--max-client-requests", "4096", "--log-level", "error", *settings)
            log = folder / f"gateway-{port}"
            stack.enter_context(Process("gateway", *words, log=log, port=port, environment=shared))
            spans.append(folder / f"spans-{port}")
            to = ("--gateway", f"ws://127.0.0.1:{port}", "--name", f"agent-{port}")
            agent = (*to, "--gap-ms", str(gap_ms), "--spans", str(spans[-1]))
            stack.enter_context(Process("bench.api.answering_agent", *agent, log=folder / f"agent-{port}"))
        for port in ports:
            until_ready(f"http://127.0.0.1:{port}/ready", 30.0, folder / f"gateway-{port}")
        seen = asyncio.run(press(ports, seconds))
        seen.losses = sum(lost(port) for port in ports)
    lines = [line.split() for path in spans for line in path.read_text().splitlines()]
    seen.at_once = at_once([(float(begin), float(end)) for begin, end in lines])
    return seen


def lost(port: int) -> int:
    """How often a gateway has lost redis."""
    url, headers = f"http://127.0.0.1:{port}/state", {"Authorization": f"Bearer {KEY}"}
    told = httpx.get(url, headers=headers, timeout=10, trust_env=False, verify=False).json()
    return int(told["fleet"]["redis"]["losses"])


def run(quick: bool, folder: Path) -> str:
    """The figures for docs/benchmarks.md. Raises RuntimeError where something else than a refusal came back."""
    if shutil.which("redis-server") is None:
        return f"Not measured: {NEEDS}."
    rows = []
    cases = (
        ("requests a minute", ("--requests-a-minute", str(REQUESTS)), 0.0, REQUESTS, 1, 63.0),
        ("tokens a minute", ("--tokens-a-minute", str(TOKENS)), 0.0, TOKENS, PROMPT_TOKENS + len(WORDS), 20.0),
        ("requests at once", ("--concurrent-requests", str(CONCURRENT)), GAP_MS, CONCURRENT, 1, 10.0),
    )
    for number, (name, settings, gap_ms, limit, cost, long_s) in enumerate(cases):
        seconds = QUICK_S if quick else long_s
        seen = pressed(settings, gap_ms, seconds, folder / str(number))
        if seen.others or not seen.granted:
            raise RuntimeError(f"{name}: {len(seen.granted)} answered, {seen.others} broken off or failed")
        most = seen.at_once if gap_ms else seen.most_within(WINDOW_S) * cost
        word = "met" if most <= limit * (1 + OVER) else "missed"
        counts = (str(len(seen.granted)), str(seen.refused), str(seen.losses))
        rows.append([name, str(limit), f"{seconds:g}", f"**{most}** ({most / limit:.1%})", word, *counts])
    head = "limit of the key | is | s | most that were let in | bar | answered in all | refused | redis lost"
    return (
        f"{CALLERS} callers, half at each of two gateways. Bar: never more than the limit + {OVER:.0%}. While redis is "
        "lost, as it is where it takes longer than 0.3 s, each gateway counts alone.\n\n" + table(head, rows)
    )
