"""The choices of a request, generated side by side, or a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Value = TypeVar("Value")


async def side_by_side(runs: Sequence[Callable[[], Awaitable[Value]]], at_once: int) -> list[Value]:
    """Run all, ``at_once`` of them at a time, and return what each gives. When one fails all end, and none goes on
    behind this."""
    room = asyncio.Semaphore(at_once)

    async def one(run: Callable[[], Awaitable[Value]]) -> Value:
        async with room:  # Not before: the others' room is not this request's.
            return await run()

    tasks = [asyncio.create_task(one(run)) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
