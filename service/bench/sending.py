"""An open-loop load: each request is sent when it is due, however many are still open."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from service.bench.asked import NOT_SENT, Asked
from service.bench.asking import Connections

MOST_OPEN: Final = 8192
"""Requests that are open at once at most: each has a socket."""

OTHER_FILES: Final = 64
"""Files that this process may have open beside its sockets."""


def most_open() -> int:
    """Requests that may be open at once, as many as the system allows this process sockets; asks it for enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN + OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS has a limit of its own, below what it says.
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return most - OTHER_FILES if soft == resource.RLIM_INFINITY else max(1, min(soft, most) - OTHER_FILES)


class Load:
    """Sends requests and waits for their answers.

    Args:
        most: requests open at once; what is due beyond it is not sent.
        told: called whenever one has ended, or was not sent.

    Attributes:
        asked: all that were due, in their order.
        seconds: how long it took, to the end of the last answer, or of the time for it.
    """

    def __init__(self, connections: Connections, most: int, told: Callable[[], object]) -> None:
        self.asked: list[Asked] = []
        self.seconds = 0.0
        self._connections = connections
        self._most = most
        self._told = told
        self._open: set[asyncio.Task[None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._stopped = False
        self._bug: BaseException | None = None

    def stop(self) -> None:
        """Send nothing more, and give up what is open."""
        self._stopped = True
        for task in (self._sender, *self._open):
            if task is not None:
                task.cancel()

    async def run(self, due: Iterable[float], bodies: Iterator[dict[str, Any]], drain_s: float) -> None:
        """Send a request at each time, seconds from now and rising; give up what is open ``drain_s`` behind the last.

        At its end nothing is open any more.
        """
        began = time.perf_counter()
        self._sender = asyncio.create_task(self._send(due, bodies, began))
        try:
            await asyncio.wait([self._sender])
            if not self._sender.cancelled():
                self._sender.result()
            if self._open and not self._stopped:
                await asyncio.wait(self._open, timeout=drain_s)
            self.seconds = time.perf_counter() - began
        finally:
            left = [self._sender, *self._open]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if self._bug is not None:
            raise self._bug

    async def _send(self, due: Iterable[float], bodies: Iterator[dict[str, Any]], began: float) -> None:
        for at in due:
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            asked = Asked(at)
            self.asked.append(asked)
            if len(self._open) >= self._most:
                asked.error = NOT_SENT
                self._told()
                continue
            task = asyncio.create_task(self._connections.ask(asked, next(bodies), began))
            self._open.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if task.cancelled():
            return
        if task.exception() is not None:
            self._bug = self._bug or task.exception()
            return self.stop()
        self._told()
