"""Requests a second, and what a request takes, through the gateway, through litellm's proxy, and of an echo."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from bench.api.answering_agent import MODEL, WORDS
from bench.api.caller import call, request_of
from bench.page import table
from bench.runs import spread
from processes import Process, free_port
from tqdm import tqdm

ALONE_S, MANY_S, MANY = 1.5, 3.0, 32
"""Seconds of a round with one connection, and with so many."""

WARM_S = 4.0
"""litellm's first answers take seconds."""

OVERHEAD_MS: Final = 5.0
TIMES_LITELLM: Final = 3.0

LITELLM_WITHIN_S: Final = 120.0

BODY: Final[dict[str, Any]] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Hello! Please tell me in a few words who you are and what you can do."}],
    "max_tokens": len(WORDS),
    "temperature": 0.5,
}

ECHO, GATEWAY, LITELLM = "bare echo", "gateway", "litellm proxy"


@dataclass
class Server:
    """One that is measured: where it listens, and the process whose time is looked at."""

    name: str
    port: int
    pid: int


@dataclass
class Seen:
    """Of each round: milliseconds of a request alone (median), requests a second of many connections, and milliseconds
    of the server's processor for each of those."""

    alone_ms: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    busy_ms: list[float] = field(default_factory=list)


@contextmanager
def litellm(program: str, backend: int, folder: Path) -> Iterator[Server]:
    """litellm's proxy before the echo, one worker as the gateway has, no logs and no telemetry."""
    port, config = free_port(), folder / "litellm.yaml"
    params = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{backend}/v1", "api_key": "none"}
    lines = [f"      {name}: {value}" for name, value in params.items()]
    settings = ["litellm_settings:", "  telemetry: false"]
    config.write_text("\n".join(["model_list:", f"  - model_name: {MODEL}", "    litellm_params:", *lines, *settings]))
    environment = {**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}
    environment["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # On loopback, as the gateway.
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    words = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    with (folder / "litellm.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}/health/liveliness"
        until_ready(url, LITELLM_WITHIN_S, folder / "litellm.log", process)
        yield Server(LITELLM, port, process.pid)
    finally:
        process.terminate()
        process.wait(30)


def until_ready(url: str, within_s: float, log: Path, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until an address answers 200. Raises RuntimeError where it does not in time, or its process has ended."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            if httpx.get(url, timeout=2.0, trust_env=False, verify=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise RuntimeError(f"nobody answers at {url}:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


@contextmanager
def gateway_with_agent(folder: Path, gap_ms: float = 0.0) -> Iterator[tuple[Process, Process]]:
    """A gateway, and an answering agent that is connected to it; each a process."""
    port = free_port()
    most = ("--max-client-requests", "4096", "--max-waiting", "0", "--log-level", "error")
    with ExitStack() as stack:
        gateway = stack.enter_context(
            Process("gateway", "--port", str(port), *most, log=folder / "gateway.log", port=port)
        )
        words = ("--gateway", f"ws://127.0.0.1:{port}", "--gap-ms", str(gap_ms))
        agent = stack.enter_context(Process("bench.api.answering_agent", *words, log=folder / "agent.log"))
        until_ready(f"http://127.0.0.1:{port}/ready", 30.0, folder / "agent.log")
        yield gateway, agent


@contextmanager
def servers(program: str | None, folder: Path) -> Iterator[list[Server]]:
    """All that are compared."""
    with ExitStack() as stack:
        port = free_port()
        echo = Process("bench.api.echo", "--port", str(port), log=folder / "echo.log", port=port)
        stack.enter_context(echo)
        gateway, _ = stack.enter_context(gateway_with_agent(folder))
        assert echo.process is not None and gateway.process is not None
        found = [Server(ECHO, port, echo.process.pid), Server(GATEWAY, gateway.port, gateway.process.pid)]
        if program is not None:
            found.append(stack.enter_context(litellm(program, port, folder)))
        yield found


async def measure(
    found: Sequence[Server], rounds: int, alone_s: float, many_s: float, body: dict[str, Any]
) -> dict[str, Seen]:
    """All rounds, each with all servers in another order, once all of them are warm."""
    seen = {each.name: Seen() for each in found}
    for server in found:
        await call(server.port, request_of(server.port, body), 4, WARM_S)
    for number in tqdm(range(rounds), leave=False):
        for server in (*found[number % len(found) :], *found[: number % len(found)]):
            request = request_of(server.port, body)
            alone = await call(server.port, request, 1, alone_s)
            before = sum(psutil.Process(server.pid).cpu_times()[:2])
            many = await call(server.port, request, MANY, many_s)
            busy = sum(psutil.Process(server.pid).cpu_times()[:2]) - before
            if alone.refused or many.refused:
                raise RuntimeError(f"{server.name} refused {alone.refused + many.refused} requests")
            one = seen[server.name]
            one.alone_ms.append(statistics.median(alone.seconds) * 1e3)
            one.per_second.append(many.per_second)
            one.busy_ms.append(busy / len(many.seconds) * 1e3)
    return seen


def rows(kind: str, seen: dict[str, Seen]) -> list[list[str]]:
    """Of the table, a server each."""
    echo, ours = seen[ECHO], seen[GATEWAY]
    made = []
    for name, each in seen.items():
        over = [one - two for one, two in zip(each.alone_ms, echo.alone_ms, strict=True)]
        times = [one / two for one, two in zip(ours.per_second, each.per_second, strict=True)]
        made.append(
            [
                kind,
                name,
                spread(each.alone_ms, 2),
                "–" if each is echo else spread(over, 2),
                spread(each.per_second, 0),
                spread(each.busy_ms, 2),
                "–" if each is ours else spread(times, 2),
            ]
        )
    return made


HEAD = (
    "answers | server | ms a request, alone | over the echo | requests a second"
    " | its processor, ms a request | the gateway's rate, times its"
)


def run(program: str | None, rounds: int, seconds: float, folder: Path) -> str:
    """The figures for docs/benchmarks.md; ``seconds``: a factor of how long a round is."""
    made: list[list[str]] = []
    verdicts: list[str] = []
    with servers(program, folder) as found:
        for kind, body in (("whole", BODY), ("streamed", {**BODY, "stream": True})):
            seen = asyncio.run(measure(found, rounds, ALONE_S * seconds, MANY_S * seconds, body))
            made += rows(kind, seen)
            over = statistics.median(
                one - two for one, two in zip(seen[GATEWAY].alone_ms, seen[ECHO].alone_ms, strict=True)
            )
            verdicts.append(f"{kind}, {over:.2f} ms over the echo: {'met' if over <= OVERHEAD_MS else 'missed'}")
            if LITELLM in seen:
                times = statistics.median(
                    one / two for one, two in zip(seen[GATEWAY].per_second, seen[LITELLM].per_second, strict=True)
                )
                word = "met" if times >= TIMES_LITELLM else "missed"
                verdicts.append(f"{kind}, {times:.2f} times litellm's rate: {word}")
    return (
        f"{rounds} rounds in turns; one connection, then {MANY} of one client. Bars: at most {OVERHEAD_MS:g} ms over "
        f"the echo at the median, {TIMES_LITELLM:g} times litellm's rate. {'; '.join(verdicts)}.\n\n"
        + table(HEAD, made)
    )
