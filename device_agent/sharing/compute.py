"""The thread on which all of this device's matrix products run, and a tenant's lane to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

from device_agent.sharing.fair_threads import FairThreads, served_tenant

Value = TypeVar("Value")


class Compute:
    """The one thread that runs this device's matrix products: first come, first served within a tenant, tenants by
    turns. A forward is not divided: the others wait for one that runs, which local layers keep to
    ``MAX_ROWS`` rows."""

    def __init__(self) -> None:
        self._threads = FairThreads(1, "compute")

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self._threads.idle

    def lane(self) -> Lane:
        """The thread for all the work of a session that is opened now."""
        return Lane(self, served_tenant.get())

    def others_wait(self, tenant: str) -> bool:
        """Whether work of another tenant waits."""
        return self._threads.others_wait(tenant)

    def submit(self, work: Callable[[], Value], tenant: str = "") -> asyncio.Future[Value]:
        """Run ``work`` after everything this tenant submitted before; the future belongs to the running event loop."""
        return quiet(self._threads.submit(work, tenant))

    def stream(self, work: Callable[[], Generator[Value, None, Value | None]], tenant: str = "") -> Outputs[Value]:
        """Like ``submit``; what ``work`` yields, and what it returns where that is something, is handed over as it
        comes."""
        loop, stream = asyncio.get_running_loop(), Outputs[Value]()

        def run() -> None:
            steps = work()
            try:
                while True:
                    loop.call_soon_threadsafe(stream.put, next(steps))
            except StopIteration as end:
                if end.value is not None:
                    loop.call_soon_threadsafe(stream.put, end.value)

        stream.work = self.submit(run, tenant)
        stream.work.add_done_callback(stream.ended)
        return stream

    def submit_while_idle(
        self, step: Callable[[], bool], most: int, enough: Callable[[], bool], tenant: str = ""
    ) -> asyncio.Future[None]:
        """Run ``step`` over and over: ``most`` times, as long as it says that there is more to do, until it is
        ``enough``, and until other work waits. A hop between threads costs as much as a small step, so there is one."""
        threads = self._threads

        def run() -> None:
            left = most
            while left > 0 and not threads.wanted and not enough() and step():
                left -= 1

        return quiet(threads.submit(run, tenant, free=True))

    def stop(self) -> None:
        """Let what runs finish, forget the rest."""
        self._threads.stop()


@dataclass(frozen=True)
class Lane:
    """The compute thread as one tenant has it. All work of a session goes through the one it was opened with, whoever's
    task asks for it, since its order is the order of the session's rows."""

    compute: Compute
    tenant: str

    @property
    def idle(self) -> bool:
        """Whether nothing of anybody's runs or waits."""
        return self.compute.idle

    @property
    def others_wait(self) -> bool:
        """Whether work of another tenant waits."""
        return self.compute.others_wait(self.tenant)

    def submit(self, work: Callable[[], Value]) -> asyncio.Future[Value]:
        """See ``Compute.submit``."""
        return self.compute.submit(work, self.tenant)

    def stream(self, work: Callable[[], Generator[Value, None, Value | None]]) -> Outputs[Value]:
        """See ``Compute.stream``."""
        return self.compute.stream(work, self.tenant)

    def submit_while_idle(
        self, step: Callable[[], bool], most: int, enough: Callable[[], bool]
    ) -> asyncio.Future[None]:
        """See ``Compute.submit_while_idle``."""
        return self.compute.submit_while_idle(step, most, enough, self.tenant)


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
        self._wake()

    def ended(self, work: asyncio.Future[None]) -> None:
        """The work is done, or has failed."""
        self._wake()

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

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def quiet(future: asyncio.Future[Value]) -> asyncio.Future[Value]:
    """The same future, which nobody complains about when it fails after its session was closed."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
