"""Layers on this machine as a submodel: every verb runs, in order, on one compute thread."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from split_model.kv_cache import KVCache
from split_model.nodes import check_path, reach, tree_behind
from split_model.stack import Span, Stack
from split_model.tree import Branching, Tree
from wire.limits import MAX_BRANCHING_ROWS

Value = TypeVar("Value")

MAX_ROWS = 4096
"""Rows in one forward, so that a prompt can be one. Other sessions' rows wait meanwhile: it is for the chunks that
prompts are cut into, by what the cloud takes and advises or by ``DEFAULT_CHUNK``, to make that short."""

NODE_ROOM = 128
"""Slots of a session's cache beyond its positions, for nodes: rows that branch and are mostly forgotten."""


class Compute:
    """The one thread that runs this device's matrix products, first come, first served."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._last: Future[Any] | None = None
        self._submitted = 0

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self._last is None or self._last.done()

    def submit(self, work: Callable[[], Value]) -> asyncio.Future[Value]:
        """Run ``work`` after everything submitted before; the future belongs to the running event loop."""
        self._submitted += 1
        submitted = self._executor.submit(work)
        self._last = submitted
        return quiet(asyncio.wrap_future(submitted))

    def submit_while_idle(
        self, step: Callable[[], bool], most: int, enough: Callable[[], bool]
    ) -> asyncio.Future[None]:
        """Run ``step`` over and over: ``most`` times, as long as it says that there is more to do, until it is
        ``enough``, and until other work waits. A hop between threads costs as much as a small step, so there is one."""
        number = self._submitted + 1

        def run() -> None:
            left = most
            while left > 0 and self._submitted == number and not enough() and step():
                left -= 1

        return self.submit(run)

    def stop(self) -> None:
        """Let what runs finish, forget the rest."""
        self._submitted += 1  # So that work for idle time ends too.
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
    pace = None

    def __init__(self, stack: Stack, compute: Compute) -> None:
        self._stack = stack
        self._compute = compute

    def drafts_in(self, seconds: float) -> None:
        """Nobody else needs to know."""

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> LocalSession:
        """Begin a session with room for ``positions`` positions."""
        return LocalSession(self._stack, positions, self._compute)


class LocalSession:
    """One session on a local stack."""

    def __init__(self, stack: Stack, positions: int, compute: Compute) -> None:
        self.advised: Callable[[int, Sequence[int]], None] | None = None
        self._stack = stack
        self._positions = positions
        self._cache: KVCache | None = stack.new_cache(positions + NODE_ROOM)
        self._compute = compute
        self._position = 0
        self._tree: Tree | None = None
        """The nodes behind the position; of use on the compute thread only."""
        self._branches: Tree | None = None
        """The nodes of a ``forward`` whose rows branch, once all asked for so far is done."""

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

    def forward(
        self, hidden: torch.Tensor, want: int, parents: Sequence[int] | None = None
    ) -> asyncio.Future[torch.Tensor]:
        """See ``SubmodelSession.forward``."""
        if parents is None:
            cache = self._advance(hidden.shape[0], want)
            return self._compute.submit(lambda: self._run(cache, hidden, want))
        cache, branching = self._branch(hidden.shape[0], want, parents)
        return self._compute.submit(lambda: self._run(cache, hidden, want, branching))

    def forward_from(self, source: Callable[[], torch.Tensor], rows: int) -> asyncio.Future[torch.Tensor]:
        """Like ``forward`` of ``rows`` rows, all wanted, which ``source`` makes on the compute thread: one hop less."""
        cache = self._advance(rows, rows)
        return self._compute.submit(lambda: self._run(cache, source(), rows))

    # ---- for callers on the compute thread, while nothing of this session waits ----

    def forward_now(self, hidden: torch.Tensor) -> torch.Tensor:
        """``forward`` of all rows, at once."""
        return self._run(self._advance(len(hidden), len(hidden)), hidden, len(hidden))

    def branch_now(self, hidden: torch.Tensor, parents: Sequence[int]) -> torch.Tensor:
        """Run nodes: rows that follow ``parents``, -1 being the last position, and count for nothing until kept.

        Nodes are numbered in the order they come, from 0 after each ``keep_now`` or truncation.
        Raises ``CacheFull`` beyond ``NODE_ROOM``, ``ValueError`` for a parent that is not there.
        """
        cache = self._open_cache()
        if self._tree is None:
            self._tree = Tree(self._position)
        self._tree.check(parents)
        cache.reserve(len(parents))
        return self._stack.forward(hidden, [Span(cache, len(parents), self._tree.add(parents))])

    def keep_now(self, path: Sequence[int], line: Sequence[int] = ()) -> None:
        """The nodes of ``path`` become the session's next positions; those of ``line``, which goes on behind it, become
        nodes 0, 1, …; all others are forgotten."""
        cache, tree = self._open_cache(), self._tree or Tree(self._position)
        cache.keep(tree.trunk, tree.slots([*path, *line]))
        self._position += len(path)
        self._tree = None
        if line:
            self._tree = Tree(self._position)
            self._tree.add(range(-1, len(line) - 1))

    def truncate_now(self, position: int) -> None:
        """``truncate``, at once."""
        assert 0 <= position <= self._position, (position, self._position)
        self._position, self._tree = position, None
        self._open_cache().truncate(position)

    # ---- for everybody ----

    def truncate(self, position: int) -> None:
        """See ``SubmodelSession.truncate``."""
        cache = self._open_cache()
        if not 0 <= position <= self._position:
            raise ValueError(f"cannot truncate to {position}, the session is at {self._position}")
        self._position, self._branches = position, None

        def cut() -> None:
            self._tree = None
            cache.truncate(position)

        self._compute.submit(cut)

    def keep(self, nodes: Sequence[int]) -> None:
        """See ``SubmodelSession.keep``."""
        cache, tree = self._open_cache(), self._branches
        check_path(tree, nodes)
        assert tree is not None
        trunk, slots = tree.trunk, tree.slots(nodes)
        self._position, self._branches = trunk + len(slots), None
        self._compute.submit(lambda: cache.keep(trunk, slots))

    def park(self) -> None:
        """See ``SubmodelSession.park``; the cache is there for whoever holds the session."""
        self._open_cache()
        self._check_line()

    def close(self) -> None:
        """Free the cache; what is still queued runs on it first."""
        self._cache = None

    def _advance(self, rows: int, want: int) -> KVCache:
        cache = self._open_cache()
        self._check_forward(rows, want, self._position + rows)
        self._position += rows
        return cache

    def _branch(self, rows: int, want: int, parents: Sequence[int]) -> tuple[KVCache, Branching | None]:
        cache = self._open_cache()
        tree, branching = tree_behind(self._position, parents, rows, MAX_BRANCHING_ROWS)
        self._check_forward(rows, want, reach(tree))
        self._branches = tree
        return cache, branching

    def _check_forward(self, rows: int, want: int, end: int) -> None:
        self._check_line()
        if not 0 <= want <= rows or not 0 < rows <= MAX_ROWS:
            raise ValueError(f"{want} of {rows} rows wanted; a forward has 1 to {MAX_ROWS} rows")
        if end > self._positions:
            raise ValueError(f"position {end} is beyond the session's {self._positions}")

    def _check_line(self) -> None:
        if self._branches is not None:
            raise ValueError("rows branch here: keep some of them, or truncate, before anything else")

    def _run(self, cache: KVCache, hidden: torch.Tensor, want: int, branching: Branching | None = None) -> torch.Tensor:
        rows = hidden.shape[0]
        return self._stack.forward(hidden, [Span(cache, rows, branching)])[rows - want :]

    def _open_cache(self) -> KVCache:
        if self._cache is None:
            raise ValueError("the session is closed")
        return self._cache
