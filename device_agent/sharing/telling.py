"""From a thread to an event loop that may have ended meanwhile."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def tell(loop: AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    """Have ``call`` made on its loop, from any thread. Where the loop has ended nobody is left to be told."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)
