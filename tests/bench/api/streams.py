"""A thousand open streams on one gateway: every token comes, and memory stays flat."""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from bench.api.answering_agent import MODEL
from bench.api.caller import HEAD_END, Caller, request_of
from bench.api.rates import gateway_with_agent
from bench.page import table

STREAMS, TOKENS, GAP_S = 1000, 60, 1.0
QUICK: Final = (50, 8, 0.25)
"""Streams, tokens of each, and seconds between them; the same where it is to be quick."""

SAMPLE_S: Final = 0.5
FLAT_MB_MIN: Final = 1.0
WITHIN_S: Final = 60.0
OTHER_FILES: Final = 100


@dataclass
class Open:
    """What was seen: answers with all their tokens and others, and the gateway's memory, a time and bytes each, while
    all streams were open."""

    whole: int = 0
    broken: int = 0
    before: int = 0
    memory: list[tuple[float, int]] = field(default_factory=list)
    opened_s: float = 0.0

    @property
    def slope_mb_min(self) -> float:
        """By how much memory grew in a minute, a straight line through the second half."""
        second = self.memory[len(self.memory) // 2 :]
        slope, _ = statistics.linear_regression([at for at, _ in second], [held / 1e6 for _, held in second])
        return slope * 60


class Listener(Caller):
    """A caller that keeps what it hears until its stream ends."""

    heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data
        super().data_received(data)

    @property
    def tokens(self) -> int:
        """Events with text."""
        events = self.heard.partition(HEAD_END)[2].split(b"data: ")
        return sum(b'"content":"' in each and b'"content":""' not in each for each in events)


async def hold(port: int, pid: int, streams: int, tokens: int) -> Open:
    """Open all streams, and look at the gateway until the last one has ended."""
    seen, loop, process = Open(), asyncio.get_running_loop(), psutil.Process(pid)
    turns = [{"role": "user", "content": "Tell me a long story."}]
    request = request_of(port, {"model": MODEL, "messages": turns, "max_tokens": tokens, "stream": True})
    seen.before = process.memory_info().rss
    began = time.monotonic()
    listeners: list[Listener] = []
    for _ in range(streams):
        made = await loop.create_connection(lambda: Listener(request, lambda status, took: False), "127.0.0.1", port)
        listeners.append(made[1])
    while not all(each.heard for each in listeners):
        await asyncio.sleep(0.01)
        if time.monotonic() - began > WITHIN_S:
            raise RuntimeError(f"{sum(not each.heard for each in listeners)} of {streams} streams did not begin")
    seen.opened_s = time.monotonic() - began
    closed = asyncio.gather(*(each.closed for each in listeners))
    while all(not each.closed.done() for each in listeners):
        seen.memory.append((time.monotonic(), process.memory_info().rss))
        await asyncio.wait([closed], timeout=SAMPLE_S)
    await asyncio.wait_for(closed, WITHIN_S)
    seen.whole = sum(each.tokens == tokens and each.heard.endswith(b"0\r\n\r\n") for each in listeners)
    seen.broken = streams - seen.whole
    return seen


def run(quick: bool, folder: Path) -> str:
    """The figures for docs/benchmarks.md. Raises RuntimeError where this process may not have so many sockets."""
    streams, tokens, gap_s = QUICK if quick else (STREAMS, TOKENS, GAP_S)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = streams + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise RuntimeError(f"{needed} open files are needed; ulimit -n allows {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))  # What is started here has it too.
    with gateway_with_agent(folder, gap_s * 1e3) as (gateway, _):
        assert gateway.process is not None
        seen = asyncio.run(hold(gateway.port, gateway.process.pid, streams, tokens))
    held = statistics.mean(held for _, held in seen.memory[len(seen.memory) // 2 :])
    flat = "met" if seen.slope_mb_min <= FLAT_MB_MIN else "missed"
    rows = [
        ["streams, and those without all their tokens", f"{streams}, **{seen.broken}**"],
        ["s until all had begun", f"{seen.opened_s:.1f}"],
        ["the gateway's memory before, and with all open, MB", f"{seen.before / 1e6:.0f}, {held / 1e6:.0f}"],
        ["kB a stream", f"{(held - seen.before) / streams / 1e3:.0f}"],
        ["growth over the second half, MB a minute", f"**{seen.slope_mb_min:+.2f}**"],
    ]
    return (
        f"{streams} streams of {tokens} tokens, one every {gap_s:g} s in each. Bars: none broken; memory grows by at "
        f"most {FLAT_MB_MIN:g} MB a minute: {flat}.\n\n" + table("what | seen", rows)
    )
