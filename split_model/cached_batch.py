"""A step's rows over sessions that each have a contiguous cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from split_model.attention import Sight, attend_in, sight_of
from split_model.kv_cache import KVCache
from split_model.new_rows import NewRows
from split_model.positions import PositionTable
from split_model.relative import RelativeBias


class CachedRows(NewRows, Protocol):
    """Consecutive rows of a session in a step, and where its keys and values are."""

    @property
    def cache(self) -> KVCache:
        """The session's own."""
        ...


class CacheBatch:
    """See `split_model.stack.Batch`."""

    def __init__(self, spans: Sequence[CachedRows], relative: RelativeBias | None = None) -> None:
        self.rows = sum(span.rows for span in spans)
        self._all = spans
        self._spans = [span for span in spans if span.rows]
        self._relative = relative
        self._sights: dict[int | None, list[Sight]] = {}

    def look_up(self, table: PositionTable) -> tuple[torch.Tensor, ...]:
        return table.of(self._spans)

    def attend(self, layer: int, window: int | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        sights = self._sights.get(window)
        if sights is None:
            if self._relative is not None:
                sights = [self._relative.sight(span) for span in self._spans]
            else:
                sights = [sight_of(span, window, q.dtype, q.device) for span in self._spans]
            self._sights[window] = sights
        if len(self._spans) == 1:
            return _append_and_attend(self._spans[0], sights[0], layer, q, k, v)
        rows = [span.rows for span in self._spans]
        parts = (each.split_with_sizes(rows) for each in (q, k, v))
        contexts = [
            _append_and_attend(span, seen, layer, *of_span)
            for span, seen, *of_span in zip(self._spans, sights, *parts, strict=True)
        ]
        return torch.cat(contexts)

    def advance(self) -> None:
        for span in self._all:
            span.cache.advance(span.rows)


def _append_and_attend(
    span: CachedRows, seen: Sight, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    keys, values = span.cache.append(layer, k, v)
    return attend_in(seen, q, keys.narrow(1, seen.first, seen.length), values.narrow(1, seen.first, seen.length))
