"""What stands on a network, for tests without an event loop: on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar

from fault_proxy import FaultProxy, Faults

WITHIN_S: Final = 30.0

Made = TypeVar("Made")


@contextmanager
def on_a_thread(make: Callable[[], AbstractAsyncContextManager[Made]]) -> Iterator[Made]:
    """An asynchronous context manager, made, entered and left where an event loop runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="network")
    thread.start()

    def there(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(WITHIN_S)

    async def made() -> AbstractAsyncContextManager[Made]:
        return make()

    try:
        manager = there(made())
        entered = there(manager.__aenter__())
        try:
            yield entered
        finally:
            there(manager.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def proxied(target: str, faults: Faults, seed: int) -> AbstractContextManager[FaultProxy]:
    """A network to ``target``, a ``ws://`` address, that harms messages."""
    return on_a_thread(lambda: FaultProxy(target, faults, seed))
