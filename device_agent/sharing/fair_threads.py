"""Threads that run the work of tenants by turns: one for matrix products, a few that read prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from threading import Lock
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

from device_agent.sharing.fair_queue import FairQueue

Value = TypeVar("Value")

served_tenant: Final[ContextVar[str]] = ContextVar("served_tenant", default="")
"""Whose request is being served; empty outside any. A session that is opened belongs to this tenant from then on."""


class _Work(NamedTuple):
    run: Callable[[], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    free: bool


class FairThreads:
    """A few threads. The work of one tenant begins in the order in which it was submitted; tenants take turns, by the
    seconds that their work has taken, and of several threads one is left to others."""

    def __init__(self, count: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._queue: FairQueue[_Work] = FairQueue(max(1, count - 1))
        self._lock = Lock()
        self._stopped = False

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self._queue.idle

    @property
    def wanted(self) -> bool:
        """Whether what runs had better end: other work waits, or the threads are to stop."""
        return len(self._queue) > 0 or self._stopped

    def others_wait(self, tenant: str) -> bool:
        """Whether work of another tenant waits."""
        return self._queue.others_wait(tenant)

    def submit(self, work: Callable[[], Value], tenant: str, free: bool = False) -> asyncio.Future[Value]:
        """Run ``work`` in this tenant's turn. The future belongs to the running event loop; where it is cancelled
        before its turn, the work does not run.

        Args:
            free: it counts for nothing, since it only takes time that nobody else wants.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Value] = loop.create_future()
        with self._lock:
            self._executor.submit(self._run)  # For each work, one that takes whichever is next by then.
            self._queue.add(tenant, _Work(work, future, loop, free))
        return future

    def stop(self) -> None:
        """Let what runs finish, forget the rest."""
        with self._lock:
            self._stopped = True
            self._executor.shutdown(wait=False, cancel_futures=True)
            left = self._queue.clear()
        for work in left:
            with suppress(RuntimeError):  # Its event loop has ended.
                work.loop.call_soon_threadsafe(work.future.cancel)

    def _run(self) -> None:
        with self._lock:
            found = self._next()
        # On to the next at once: its tenant may have had as many running as it may when a thread was free for it.
        while found is not None:
            tenant, work = found
            cancelled, began = work.future.cancelled(), perf_counter()
            value, failure = (None, None) if cancelled else _outcome(work.run)
            with self._lock:  # Before anybody learns that it is done, and asks whether anything runs.
                self._queue.done(tenant, 0.0 if work.free or cancelled else perf_counter() - began)
                found = self._next()
            if not cancelled:
                with suppress(RuntimeError):  # Its event loop has ended.
                    work.loop.call_soon_threadsafe(_tell, work.future, value, failure)
            del work, value, failure  # Nothing of it is held while the next runs.

    def _next(self) -> tuple[str, _Work] | None:
        return None if self._stopped else self._queue.take()


def _outcome(run: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return run(), None
    except BaseException as error:  # As an executor does: whoever waits learns of it.
        return None, error


def _tell(future: asyncio.Future[Value], value: Value, failure: BaseException | None) -> None:
    if future.done():  # Nobody waits any more.
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(value)
