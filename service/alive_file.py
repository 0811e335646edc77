"""A file that is touched while a process's event loop runs: what ``alive.py`` looks at where no port is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from service.alive import BEAT_EVERY_S
from service.settings import tuning

log = structlog.get_logger()


@dataclass(frozen=True)
class AliveSettings:
    """Whether it is alive."""

    alive_path: str = tuning(
        "",
        f"file that is touched every {BEAT_EVERY_S:g} s while this process is alive, for health checks (python -m "
        "service.alive device); empty: none",
    )


@asynccontextmanager
async def alive_in(path: str) -> AsyncIterator[None]:
    """Touch a file while the block runs; empty: none. One that cannot be written is said once, and costs no answer:
    who looks at it takes this process for dead."""
    if not path:
        yield
        return
    beating = asyncio.create_task(_beat(Path(path)))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def alive_while(path: str, work: Awaitable[None]) -> None:
    """Await ``work`` with the file touched meanwhile: all that a process does."""
    async with alive_in(path):
        await work


async def _beat(path: Path) -> None:
    said = False
    while True:
        wrong = _touch(path)
        if wrong and not said:
            log.error("--alive-path cannot be touched", why=f"{path}: {wrong}")
        said = bool(wrong)
        await asyncio.sleep(BEAT_EVERY_S)


def _touch(path: Path) -> str:
    """Why it cannot be touched; empty where it was. Its folder is in memory, or as fast."""
    try:
        path.touch()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""
