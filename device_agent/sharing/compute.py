"""Threads that run the work of tenants by turns: one for this device's matrix products, a few that read prompts.

Turns are by start-time fair queueing: each tenant has a virtual time, what its work has cost so far. Who has the least
goes next, and the work of one tenant stays in order. One that comes, or comes back, begins where the least served of
those who are there stands, so that nobody saves up turns by waiting. So whatever one tenant queues, another's next work
waits for what runs, and for its share of what follows.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from device_agent.sharing.permit_queue import NOBODY

Value = TypeVar("Value")
Item = TypeVar("Item")

served_tenant: Final[ContextVar[str]] = ContextVar("served_tenant", default="")
"""Whose request is being served; empty outside any. A session that is opened belongs to this tenant from then on."""


class FairQueue(Generic[Item]):
    """Work of tenants, waiting and running. Pure: what the work is, and what it has cost, is handed in.

    Of one tenant ``most`` may run at once, so that all is never held by one; ``NOBODY`` has no such limit.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        assert most > 0
        self._most = most
        self._waiting: dict[str, deque[tuple[int, Item]]] = {}
        self._running: Counter[str] = Counter()
        self._times: dict[str, float] = {}
        self._floor = 0.0
        """The time at which what runs was begun: nobody who comes now begins below it."""
        self._added = self._taken = 0

    def __len__(self) -> int:
        """How much waits."""
        return self._added - self._taken

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not (self._waiting or self._running)

    def others_wait(self, tenant: str) -> bool:
        """Whether anything of another tenant waits."""
        return len(self._waiting) > (tenant in self._waiting)

    def add(self, tenant: str, item: Item) -> None:
        """``item`` waits, behind all that this tenant has added before."""
        line = self._waiting.get(tenant)
        if line is None:
            line = self._waiting[tenant] = deque()
            self._times[tenant] = max(self._times.get(tenant, 0.0), self._floor)
        self._added += 1
        line.append((self._added, item))

    def take(self) -> tuple[str, Item] | None:
        """What runs next, and whose it is; ``done`` must follow. None where nothing may run now."""
        waiting, times, running = self._waiting, self._times, self._running
        may = [each for each in waiting if each == NOBODY or running[each] < self._most]
        if not may:
            return None
        # What runs is not in the times yet. Of equals the one that has waited longest.
        tenant = min(may, key=lambda each: (times[each], running[each], waiting[each][0][0]))
        _, item = waiting[tenant].popleft()
        if not waiting[tenant]:
            del waiting[tenant]
        self._taken += 1
        running[tenant] += 1
        self._floor = max(self._floor, times[tenant])
        return tenant, item

    def done(self, tenant: str, cost: float) -> None:
        """What was taken of this tenant is done and has cost so much, 0 or more."""
        self._times[tenant] += cost
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        if self.idle:  # Everybody has had all they asked for.
            self._times.clear()
            self._floor = 0.0
        elif len(self._times) > 2 * (len(self._waiting) + len(self._running)):
            here = self._waiting.keys() | self._running.keys()
            self._times = {each: time for each, time in self._times.items() if each in here or time > self._floor}

    def clear(self) -> list[Item]:
        """Forget all that waits; in the order of their coming."""
        left = sorted((each for line in self._waiting.values() for each in line), key=lambda each: each[0])
        self._waiting.clear()
        self._taken = self._added
        return [item for _, item in left]


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
        self.queue: FairQueue[_Work] = FairQueue(max(1, count - 1))  # What waits and runs; read-only for others.
        self._lock = Lock()
        self._stopped = False

    @property
    def wanted(self) -> bool:
        """Whether what runs had better end: other work waits, or the threads are to stop."""
        return len(self.queue) > 0 or self._stopped

    def submit(self, work: Callable[[], Value], tenant: str = "", free: bool = False) -> asyncio.Future[Value]:
        """Run ``work`` in this tenant's turn. The future belongs to the running event loop; where it is cancelled
        before its turn, the work does not run.

        Args:
            free: it counts for nothing, since it only takes time that nobody else wants.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Value] = loop.create_future()
        with self._lock:
            self._executor.submit(self._run)  # For each work, one that takes whichever is next by then.
            self.queue.add(tenant, _Work(work, future, loop, free))
        return quiet(future)

    def stop(self) -> None:
        """Let what runs finish, forget the rest."""
        with self._lock:
            self._stopped = True
            self._executor.shutdown(wait=False, cancel_futures=True)
            left = self.queue.clear()
        for work in left:
            tell(work.loop, work.future.cancel)

    def _run(self) -> None:
        with self._lock:
            found = self.queue.take()
        # On to the next at once: its tenant may have had as many running as it may when a thread was free for it.
        while found is not None:
            tenant, work = found
            cancelled, began = work.future.cancelled(), perf_counter()
            value = failure = None
            try:
                value = None if cancelled else work.run()
            except BaseException as error:  # As an executor does: whoever waits learns of it.
                failure = error
            with self._lock:  # Before anybody learns that it is done, and asks whether anything runs.
                self.queue.done(tenant, 0.0 if work.free or cancelled else perf_counter() - began)
                found = self.queue.take()
            if not cancelled:
                tell(work.loop, _answer, work.future, value, failure)
            del work, value, failure  # Nothing of it is held while the next runs.


class Compute(FairThreads):
    """The one thread that runs this device's matrix products. A forward is not divided: the others wait for one that
    runs, which local layers keep to ``MAX_ROWS`` rows."""

    def __init__(self) -> None:
        super().__init__(1, "compute")

    def lane(self) -> Lane:
        """The thread for all the work of a session that is opened now."""
        return Lane(self, served_tenant.get())


@dataclass(frozen=True)
class Lane:
    """The compute thread as one tenant has it. All work of a session goes through the one it was opened with, whoever's
    task asks for it, since its order is the order of the session's rows."""

    compute: Compute
    tenant: str

    @property
    def idle(self) -> bool:
        """Whether nothing of anybody's runs or waits."""
        return self.compute.queue.idle

    @property
    def others_wait(self) -> bool:
        """Whether work of another tenant waits."""
        return self.compute.queue.others_wait(self.tenant)

    def submit(self, work: Callable[[], Value]) -> asyncio.Future[Value]:
        """Run ``work`` after everything this tenant submitted before; the future belongs to the running event loop."""
        return self.compute.submit(work, self.tenant)

    def stream(self, work: Callable[[], Generator[Value, None, Value | None]]) -> Outputs[Value]:
        """Like ``submit``; what ``work`` yields, and what it returns where that is something, is handed over as it
        comes."""
        loop, stream = asyncio.get_running_loop(), Outputs[Value]()

        def run() -> None:
            steps = work()
            try:
                while True:
                    tell(loop, stream.put, next(steps))
            except StopIteration as end:
                if end.value is not None:
                    tell(loop, stream.put, end.value)

        stream.work = self.submit(run)
        stream.work.add_done_callback(stream.wake)
        return stream

    def submit_while_idle(
        self, step: Callable[[], bool], most: int, enough: Callable[[], bool]
    ) -> asyncio.Future[None]:
        """Run ``step`` over and over: ``most`` times, as long as it says that there is more to do, until it is
        ``enough``, and until other work waits. A hop between threads costs as much as a small step, so there is one."""
        compute = self.compute

        def run() -> None:
            left = most
            while left > 0 and not compute.wanted and not enough() and step():
                left -= 1

        return compute.submit(run, self.tenant, free=True)


class Outputs(Generic[Value]):
    """What one piece of work on the thread hands over, in order, to be iterated over once; raises what the work raises.

    It ends when the work is done, not with the last item: whoever asks then whether the thread is idle is not told of
    this very work.

    Attributes:
        work: done once all was handed over.
    """

    work: asyncio.Future[None]

    def __init__(self) -> None:
        self._items: deque[Value] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Value) -> None:
        """One more."""
        self._items.append(item)
        self.wake()

    def wake(self, work: asyncio.Future[None] | None = None) -> None:
        """There is something new: an item, or the end of the work."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Outputs[Value]:
        return self

    async def __anext__(self) -> Value:
        while not self._items and not self.work.done():
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.work.cancel()  # Where its turn has not come yet, it does not run.
                raise
        if self._items:
            return self._items.popleft()
        self.work.result()
        raise StopAsyncIteration


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    """Have ``call`` made on its loop, from any thread. Where the loop has ended nobody is left to be told."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


def quiet(future: asyncio.Future[Value]) -> asyncio.Future[Value]:
    """The same future, which nobody complains about when it fails after its session was closed."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


def _answer(future: asyncio.Future[Value], value: Value, failure: BaseException | None) -> None:
    if future.done():  # Nobody waits any more.
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(value)
