"""Attention kernels for CUDA that take all spans in one call: torch's own, and flash-attn's where it is installed.

Both read the pool by pages where they can; else the keys and values of the step's sessions are put side by side first.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate, chain
from typing import Any, Protocol

import torch

from cloud_server.cache.pool import KVPool
from cloud_server.cache.span import PagedSpan

FLASH_PAGE_POSITIONS = 256
"""flash-attn 2 reads pages of multiples of this many positions."""

MAX_HEAD_DIM = 256

_PROBE_TOLERANCE = 0.05


@dataclass(frozen=True)
class Lengths:
    """Where spans begin and end, int32 on the device: rows and positions summed up, ``[spans + 1]``; and the longest.

    ``table [spans, pages]`` and ``used [spans]``, the page numbers and the positions, where keys are read by pages.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    most_rows: int
    most_positions: int
    used: torch.Tensor
    table: torch.Tensor | None


class Kernel(Protocol):
    """Causal attention of all spans in one call."""

    def __call__(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: Lengths, window: tuple[int, int]
    ) -> torch.Tensor:
        """``q [rows, heads, head_dim]`` -> the same. Keys and values ``[positions, kv_heads, head_dim]``.

        With ``lengths.table``, keys and values are ``[pages, page_positions, kv_heads, head_dim]``. ``window``:
        positions seen to the left of a row and to its right, -1 for all. Rows are their session's last positions.
        """
        ...


class VarlenBackend:
    """A kernel behind the seam ``cloud_server.cache.pool_attention.Backend``."""

    def __init__(self, name: str, kernel: Kernel, page_multiple: int) -> None:
        self.name = name
        self._kernel = kernel
        self._page_multiple = page_multiple
        self._by_pages: dict[tuple[int, ...], bool] = {}

    def step(self, pool: KVPool, spans: Sequence[PagedSpan], runs: Sequence[Sequence[range]]) -> VarlenStep:
        geometry = (pool.page_positions, *pool.keys.shape[2:])
        if geometry not in self._by_pages:
            self._by_pages[geometry] = pool.page_positions % self._page_multiple == 0 and _reads_pages(
                self._kernel, pool
            )
        return VarlenStep(self._kernel, pool, spans, runs, self._by_pages[geometry])


class VarlenStep:
    """One step: the tables are made once, for all layers."""

    def __init__(
        self,
        kernel: Kernel,
        pool: KVPool,
        spans: Sequence[PagedSpan],
        runs: Sequence[Sequence[range]],
        by_pages: bool,
    ) -> None:
        self._kernel = kernel
        self._pool = pool
        self._slots = None if by_pages else _slots(runs, pool.device)
        self._lengths = _lengths(pool, spans, by_pages)

    def attend(self, layer: int, window: int | None, q: torch.Tensor) -> torch.Tensor:
        keys, values = self._pool.layer(layer)
        if self._slots is None:
            pages = (self._pool.pages, self._pool.page_positions, *keys.shape[1:])
            keys, values = keys.view(pages), values.view(pages)
        else:
            keys, values = keys.index_select(0, self._slots), values.index_select(0, self._slots)
        # A kernel counts the positions before the row, a window of this project the row too.
        sides = (-1 if window is None else window - 1, 0)
        return self._kernel(q, keys, values, self._lengths, sides).reshape(q.shape[0], -1)


def torch_varlen() -> VarlenBackend:
    """torch.nn.attention.varlen. Raises ImportError where this torch has none that knows windows and grouped heads."""
    varlen_attn: Callable[..., torch.Tensor] = import_module("torch.nn.attention.varlen").varlen_attn
    known = inspect.signature(varlen_attn).parameters
    if "window_size" not in known or "enable_gqa" not in known:
        raise ImportError(
            "its torch.nn.attention.varlen knows no windows and no grouped heads; use torch 2.13 or newer"
        )

    def kernel(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: Lengths, window: tuple[int, int]
    ) -> torch.Tensor:
        options: dict[str, Any] = {"window_size": window, "enable_gqa": q.shape[1] != keys.shape[-2]}
        ends: torch.Tensor | None = lengths.positions
        if lengths.table is not None:
            # With pages the lengths say it all: kernels refuse sums beside them.
            options.update(seqused_k=lengths.used, block_table=lengths.table)
            ends = None
        return varlen_attn(q, keys, values, lengths.rows, ends, lengths.most_rows, lengths.most_positions, **options)

    return VarlenBackend("varlen", kernel, page_multiple=1)


def flash() -> VarlenBackend:
    """flash-attn 2. Raises ImportError where it is not installed."""
    varlen: Callable[..., torch.Tensor] = import_module("flash_attn").flash_attn_varlen_func

    def kernel(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: Lengths, window: tuple[int, int]
    ) -> torch.Tensor:
        return varlen(
            q,
            keys,
            values,
            lengths.rows,
            lengths.positions,
            lengths.most_rows,
            lengths.most_positions,
            causal=True,
            window_size=window,
            block_table=lengths.table,
        )

    return VarlenBackend("flash", kernel, page_multiple=FLASH_PAGE_POSITIONS)


def _lengths(pool: KVPool, spans: Sequence[PagedSpan], by_pages: bool) -> Lengths:
    rows = [span.rows for span in spans]
    positions = [span.end for span in spans]
    table = None
    if by_pages:
        pages = [list(span.pages[: -(-span.end // pool.page_positions)]) for span in spans]
        width = max(map(len, pages))
        padded = [of_span + [0] * (width - len(of_span)) for of_span in pages]
        table = torch.tensor(padded, dtype=torch.int32).to(pool.device)
    # One transfer for the three.
    sums = [*accumulate(rows, initial=0), *accumulate(positions, initial=0), *positions]
    on_device = torch.tensor(sums, dtype=torch.int32).to(pool.device)
    ends, key_ends, used = on_device.split_with_sizes([len(spans) + 1, len(spans) + 1, len(spans)])
    # Kernels may read 16 bytes at once, so none begins in the middle of the others.
    return Lengths(ends, key_ends.clone(), max(rows), max(positions), used.clone(), table)


def _slots(runs: Sequence[Sequence[range]], device: torch.device) -> torch.Tensor:
    parts = [torch.arange(run.start, run.stop) for of_span in runs for run in of_span]
    return torch.cat(parts).to(device)


def _reads_pages(kernel: Kernel, pool: KVPool) -> bool:
    """Whether the kernel takes pages like the pool's and computes the same with them as without.

    What the spans have not written is NaN, the page that fills up the table included: a kernel that reads it, and be it
    to multiply it by nought, gets no pages.
    """
    size, kv_heads, head_dim = pool.page_positions, *pool.keys.shape[2:]
    scratch = KVPool(1, kv_heads, head_dim, pool.keys.dtype, pool.device, 6, size)
    spans = [PagedSpan((4, 1), size, 1), PagedSpan((2, 3), 2 * size - 2, 2), PagedSpan((5,), size - 1, 1)]
    runs = [scratch.runs(span) for span in spans]
    for store in (scratch.keys, scratch.values):
        store.fill_(math.nan)
        for run in chain.from_iterable(runs):
            store[:, run.start : run.stop].normal_()
    q = torch.randn((4, kv_heads, head_dim), device=pool.device).to(pool.keys.dtype)
    try:
        found, wanted = (VarlenStep(kernel, scratch, spans, runs, pages).attend(0, None, q) for pages in (True, False))
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        # What cannot run without pages either raises again in the step itself.
        return False
    return bool((found - wanted).abs().max() < _PROBE_TOLERANCE)
