"""All rates of a load, one after the other, behind one request that shows whether there is anything to measure."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from service.api_server import ServerError, shown
from service.bars import Bars
from service.bench.arrivals import due_times
from service.bench.asked import Asked
from service.bench.asking import Connections
from service.bench.config import BenchConfig
from service.bench.figures import Figures, figures
from service.bench.prompts import Prompt
from service.bench.sending import Load, most_open


async def measured(config: BenchConfig, model: str, prompts: Iterator[Prompt], bars: Bars) -> list[Figures]:
    """The figures of all rates, or of those that Ctrl-C has left.

    Raises:
        ServerError: one request before all others, which is not counted, was not answered.
    """
    bodies = (config.asks(model, each.messages, each.max_tokens) for each in prompts)
    most = most_open()
    found: list[Figures] = []
    async with Connections(config.base, config.headers, config.verifies()) as connections:
        await _try(connections, next(bodies), config.base)
        for rate in config.rates():
            due = due_times(config.arrivals, rate, config.seconds_each, config.seed)
            with bars.bar(f"{rate:g} a second", len(due), "answers") as told:
                load = Load(connections, most, partial(told, 1))
                with _interrupted(load.stop) as interrupted:
                    await load.run(due, bodies, config.drain_s)
            if load.asked:
                found.append(figures(rate, load.asked, load.seconds, config.limits()))
            if interrupted():
                bars.say("Stopped; what follows is what was seen until then.")
                break
    return found


async def _try(connections: Connections, body: dict[str, Any], base: str) -> None:
    """One request that warms up, and shows what is wrong before a minute is spent on it. Raises ServerError."""
    asked = Asked(0.0)
    await connections.ask(asked, body, time.perf_counter())
    if asked.error:
        said = f": {asked.reason}" if asked.reason else ". Does it stream chat completions?"
        raise ServerError(f"A first request to {shown(base)} was not answered, {asked.error}{said}")


@contextmanager
def _interrupted(stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Within it a first Ctrl-C stops the load, and a second one all; gives whether there was one."""
    loop, came, before = asyncio.get_running_loop(), [], signal.getsignal(signal.SIGINT)

    def hear() -> None:
        came.append(True)
        give_back()
        stop()

    def give_back() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)

    loop.add_signal_handler(signal.SIGINT, hear)
    try:
        yield lambda: bool(came)
    finally:
        give_back()
