"""A step's rows over the pool."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from cloud_server.cache.pool import KVPool
from cloud_server.cache.pool_attention import Backend
from cloud_server.cache.span import PagedSpan
from split_model.new_rows import positions_of
from split_model.positions import PositionTable


class PagedBatch:
    """The rows of one step: ``Batch`` over a pool. It stores nothing beside what is in the pool.

    The same spans may be run again, after a step that failed: their rows are written to the same slots.
    """

    def __init__(self, pool: KVPool, spans: Sequence[PagedSpan], backend: Backend) -> None:
        """Raises ``ValueError`` for a span whose pages do not hold it."""
        spans = [span for span in spans if span.rows]
        runs = [pool.runs(span) for span in spans]
        self.rows = sum(span.rows for span in spans)
        self._pool = pool
        self._end = max((span.end for span in spans), default=0)
        positions = list(chain.from_iterable(map(positions_of, spans)))
        slots = list(chain.from_iterable(_last(of_span, span.rows) for of_span, span in zip(runs, spans, strict=True)))
        both = torch.tensor([positions, slots], dtype=torch.int64).to(pool.device)
        self._positions, self._slots = both.unbind(0)
        self._attention = backend.step(pool, spans, runs)

    def look_up(self, table: PositionTable) -> tuple[torch.Tensor, ...]:
        """See ``Batch.look_up``."""
        return table.positions(self._positions, self._end)

    def attend(self, layer: int, window: int | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See ``Batch.attend``."""
        keys, values = self._pool.layer(layer)
        keys.index_copy_(0, self._slots, k)
        values.index_copy_(0, self._slots, v)
        return self._attention.attend(layer, window, q)

    def advance(self) -> None:
        """Nothing: who made the spans counts the positions."""


def _last(runs: Sequence[range], rows: int) -> list[int]:
    """The last ``rows`` slots of a session, in order."""
    slots: list[int] = []
    for run in reversed(runs):
        missing = rows - len(slots)
        if missing <= 0:
            break
        slots[:0] = run[-missing:]
    return slots
