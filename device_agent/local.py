"""Layers on this machine as a submodel: every verb runs, in order, on one compute thread."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from split_model.kv_cache import KVCache
from split_model.stack import Span, Stack

Value = TypeVar("Value")

MAX_ROWS = 512
"""Rows in one forward: other sessions' rows wait no longer than this takes."""


class Compute:
    """The one thread that runs this device's matrix products, first come, first served."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute")

    def submit(self, work: Callable[[], Value]) -> asyncio.Future[Value]:
        """Run ``work`` after everything submitted before; the future belongs to the running event loop."""
        return quiet(asyncio.wrap_future(self._executor.submit(work)))

    def stop(self) -> None:
        """Let what runs finish, forget the rest."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def quiet(future: asyncio.Future[Value]) -> asyncio.Future[Value]:
    """The same future, which nobody complains about when it fails after its session was closed."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


class LocalSubmodel:
    """A stack of layers behind the four verbs."""

    connected = True
    max_rows = MAX_ROWS
    max_positions = sys.maxsize
    chunk = None

    def __init__(self, stack: Stack, compute: Compute) -> None:
        self._stack = stack
        self._compute = compute

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> LocalSession:
        """Begin a session with room for ``positions`` positions."""
        return LocalSession(self._stack, self._stack.new_cache(positions), self._compute)


class LocalSession:
    """One session on a local stack."""

    def __init__(self, stack: Stack, cache: KVCache, compute: Compute) -> None:
        self.advised: Callable[[int, Sequence[int]], None] | None = None
        self._stack = stack
        self._cache: KVCache | None = cache
        self._compute = compute
        self._position = 0

    @property
    def position(self) -> int:
        """Where the next row goes."""
        return self._position

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values held."""
        return self._cache.nbytes if self._cache is not None else 0

    def expect(self, prompt: int, expected: int) -> None:
        """See ``SubmodelSession.expect``; the cache grows with the rows that come."""

    def forward(self, hidden: torch.Tensor, want: int) -> asyncio.Future[torch.Tensor]:
        """See ``SubmodelSession.forward``."""
        cache = self._advance(hidden.shape[0], want)
        return self._compute.submit(lambda: self._run(cache, hidden, want))

    def forward_from(self, source: Callable[[], torch.Tensor], rows: int) -> asyncio.Future[torch.Tensor]:
        """Like ``forward`` of ``rows`` rows, all wanted, which ``source`` makes on the compute thread: one hop less."""
        cache = self._advance(rows, rows)
        return self._compute.submit(lambda: self._run(cache, source(), rows))

    def forward_now(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same of all rows, at once: for callers on the compute thread, while nothing of this session waits."""
        return self._run(self._advance(len(hidden), len(hidden)), hidden, len(hidden))

    def truncate(self, position: int) -> None:
        """See ``SubmodelSession.truncate``."""
        cache = self._open_cache()
        if not 0 <= position <= self._position:
            raise ValueError(f"cannot truncate to {position}, the session is at {self._position}")
        self._position = position
        self._compute.submit(lambda: cache.truncate(position))

    def park(self) -> None:
        """See ``SubmodelSession.park``; the cache is there for whoever holds the session."""
        self._open_cache()

    def close(self) -> None:
        """Free the cache; what is still queued runs on it first."""
        self._cache = None

    def _advance(self, rows: int, want: int) -> KVCache:
        cache = self._open_cache()
        if not 0 <= want <= rows or not 0 < rows <= MAX_ROWS:
            raise ValueError(f"{want} of {rows} rows wanted; a forward has 1 to {MAX_ROWS} rows")
        if self._position + rows > cache.capacity_limit:
            raise ValueError(f"position {self._position + rows} is beyond the session's {cache.capacity_limit}")
        self._position += rows
        return cache

    def _run(self, cache: KVCache, hidden: torch.Tensor, want: int) -> torch.Tensor:
        rows = hidden.shape[0]
        return self._stack.forward(hidden, [Span(cache, rows)])[rows - want :]

    def _open_cache(self) -> KVCache:
        if self._cache is None:
            raise ValueError("the session is closed")
        return self._cache
