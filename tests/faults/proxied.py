"""A network that harms messages, for tests without an event loop: ``FaultProxy`` on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fault_proxy import FaultProxy, Faults

WITHIN_S: Final = 30.0


@contextmanager
def proxied(target: str, faults: Faults, seed: int) -> Iterator[FaultProxy]:
    """A network to ``target``, a ``ws://`` address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="network")
    thread.start()
    proxy = FaultProxy(target, faults, seed)
    try:
        asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result(WITHIN_S)
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result(WITHIN_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
