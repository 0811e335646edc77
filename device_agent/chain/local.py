"""Layers on this machine as a submodel: every verb runs, in order, on one compute thread."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

import torch

from device_agent.sharing.compute import Compute, Lane
from split_model.cross import ReadSource
from split_model.device import put
from split_model.encoder import whole_texts
from split_model.kv_cache import KVCache
from split_model.stack import Span, Stack
from split_model.tree import Branches, Tree, check_path, reach, tree_behind
from wire.limits import MAX_BRANCHING_ROWS

MAX_ROWS = 4096
"""Rows in one forward, so that a prompt can be one. Other sessions' rows wait meanwhile: it is for the chunks that
prompts are cut into, by what the cloud takes and advises or by ``DEFAULT_CHUNK``, to make that short."""

NODE_ROOM = 128
"""Slots of a session's cache beyond its positions, for nodes: rows that branch and are mostly forgotten."""


class LocalSubmodel:
    """A stack of layers as a submodel, and as one that reads whole texts or images.

    Attributes:
        stack: the layers.
    """

    connected = True
    max_rows = MAX_ROWS
    max_positions = sys.maxsize
    hints = None

    def __init__(self, stack: Stack, compute: Compute) -> None:
        self.stack = stack
        self._compute = compute

    @property
    def reading(self) -> LocalSubmodel:
        """Whole texts are read here."""
        return self

    def read(self, hidden: torch.Tensor, lengths: Sequence[int]) -> asyncio.Future[torch.Tensor]:
        """See ``ReadingSubmodel.read``. What is read belongs to the tenant that is served when it is asked for."""
        if not 0 < sum(lengths) <= MAX_ROWS or hidden.shape != (sum(lengths), self.stack.spec.hidden_size):
            raise ValueError(f"rows of texts are {list(hidden.shape)}, of {sum(lengths)}; 1 to {MAX_ROWS} can be read")
        texts = whole_texts(self.stack, lengths)
        return self._compute.lane().submit(lambda: self.stack.run(put(hidden, self.stack.device), texts))

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> LocalSession:
        """Begin a session with room for ``positions`` positions."""
        return self.open_with(positions, None)

    def open_with(self, positions: int, source: ReadSource | None, stack: Stack | None = None) -> LocalSession:
        """The same, whose rows attend to a text that was read, where the model has cross-attention.

        stack: the layers for this session alone, where it has fewer heads.
        """
        return LocalSession(stack or self.stack, positions, self._compute.lane(), source)


class LocalSession:
    """One session on a local stack.

    Who is on the compute thread, while nothing of this session waits, may run rows of ``stack`` over ``cache`` himself.

    Attributes:
        stack: the layers.
        cache: its keys and values.
        sources: what its rows attend to besides, where the model has cross-attention.
        position: where the next row goes, once all asked for so far is done; whoever runs rows himself moves it.
    """

    hints = None

    def __init__(self, stack: Stack, positions: int, compute: Lane, source: ReadSource | None = None) -> None:
        self.stack = stack
        self.cache: KVCache | None = stack.new_cache(positions + NODE_ROOM)
        self.sources = None if source is None else [source]
        self.position = 0
        self._positions = positions
        self._compute = compute
        self._branches: Tree | None = None
        """The nodes of a ``forward_nodes``, once all asked for so far is done."""

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values held."""
        read = sum(source.nbytes for source in self.sources or ())
        return self.cache.nbytes + read if self.cache is not None else 0

    @property
    def branching(self) -> LocalSession:
        """Rows may branch here."""
        return self

    def expect(self, prompt: int, expected: int) -> None:
        """See ``SubmodelSession.expect``; the cache grows with the rows that come."""

    def forward(self, hidden: torch.Tensor, want: int) -> asyncio.Future[torch.Tensor]:
        """See ``SubmodelSession.forward``."""
        cache = self._advance(hidden.shape[0], want)
        return self._compute.submit(lambda: self._run(cache, hidden, want))

    def forward_nodes(self, hidden: torch.Tensor, want: int, parents: Sequence[int]) -> asyncio.Future[torch.Tensor]:
        """See ``Branching.forward_nodes``."""
        cache, branching = self._branch(hidden.shape[0], want, parents)
        return self._compute.submit(lambda: self._run(cache, hidden, want, branching))

    def forward_from(self, source: Callable[[], torch.Tensor], rows: int) -> asyncio.Future[torch.Tensor]:
        """Like ``forward`` of ``rows`` rows, all wanted, which ``source`` makes on the compute thread: one hop less."""
        cache = self._advance(rows, rows)
        return self._compute.submit(lambda: self._run(cache, source(), rows))

    def truncate(self, position: int) -> None:
        """See ``SubmodelSession.truncate``."""
        cache = self._open_cache()
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot truncate to {position}, the session is at {self.position}")
        self.position, self._branches = position, None
        self._compute.submit(lambda: cache.truncate(position))

    def keep(self, nodes: Sequence[int]) -> None:
        """See ``Branching.keep``."""
        cache, tree = self._open_cache(), self._branches
        check_path(tree, nodes)
        assert tree is not None
        trunk, slots = tree.trunk, tree.slots(nodes)
        self.position, self._branches = trunk + len(slots), None
        self._compute.submit(lambda: cache.keep(trunk, slots))

    def fork(self, position: int) -> LocalSession:
        """See ``SubmodelSession.fork``; the keys and values are copied on the compute thread, in order."""
        cache = self._open_cache()
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot fork at {position}, the session is at {self.position}")
        forked = LocalSession(self.stack, self._positions, self._compute)
        forked.sources = self.sources
        # Without room for a row until the copy is there: should it fail, so does every forward.
        own = forked.cache = self.stack.new_cache(0)
        forked.position = position
        self._compute.submit(lambda: own.begin_as(cache, position))
        return forked

    def park(self) -> None:
        """See ``SubmodelSession.park``; the cache is there for whoever holds the session."""
        self._open_cache()
        self._check_line()

    def close(self) -> None:
        """Free the cache; what is still queued runs on it first."""
        self.cache = None

    def _advance(self, rows: int, want: int) -> KVCache:
        cache = self._open_cache()
        self._check_forward(rows, want, self.position + rows)
        self.position += rows
        return cache

    def _branch(self, rows: int, want: int, parents: Sequence[int]) -> tuple[KVCache, Branches | None]:
        cache = self._open_cache()
        tree, branching = tree_behind(self.position, parents, rows, MAX_BRANCHING_ROWS)
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

    def _run(self, cache: KVCache, hidden: torch.Tensor, want: int, branching: Branches | None = None) -> torch.Tensor:
        rows, hidden = hidden.shape[0], put(hidden, self.stack.device)
        return self.stack.forward(hidden, [Span(cache, rows, branching)], sources=self.sources)[rows - want :]

    def _open_cache(self) -> KVCache:
        if self.cache is None:
            raise ValueError("the session is closed")
        return self.cache
