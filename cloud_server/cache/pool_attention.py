"""The seam for attention kernels over the pool: what a backend is, the one for every CPU, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from cloud_server.cache.attention_cuda import FLASH_PAGE_POSITIONS, MAX_HEAD_DIM, flash, torch_varlen
from cloud_server.cache.pool import KVPool
from cloud_server.cache.span import PagedSpan
from split_model.attention import Sight, attend_in, sight_of


class BackendMissing(Exception):
    """The wanted attention backend cannot run here; the message says why and what can."""


class StepAttention(Protocol):
    """Attention of one step, with all that is the same in every layer worked out once."""

    def attend(self, layer: int, window: int | None, q: torch.Tensor) -> torch.Tensor:
        """``q [rows, heads, head_dim]`` of all spans -> context ``[rows, heads * head_dim]``.

        The step's keys and values are in the pool already. ``window``: how many positions a row sees, its own
        included; None: all before it. Query head h reads KV head h // (heads / kv_heads).
        """
        ...


class Backend(Protocol):
    """A way to compute attention over the pool. ``tests/attention_conformance.py`` holds each to it."""

    @property
    def name(self) -> str:
        """What the setting calls it."""
        ...

    def step(self, pool: KVPool, spans: Sequence[PagedSpan], runs: Sequence[Sequence[range]]) -> StepAttention:
        """Get a step ready. ``spans`` all have rows; ``runs``: the slots of each span's positions, its rows last.

        Rows that branch see what ``PagedSpan.branching`` says.
        """
        ...


class LinesBackend:
    """A backend whose kernel knows sessions as lines alone; spans that branch are left to ``SdpaBackend``.

    Args:
        lines: computes all spans that do not branch.
    """

    def __init__(self, lines: Backend) -> None:
        self.name = lines.name
        self._lines = lines
        self._branches = SdpaBackend()

    def step(self, pool: KVPool, spans: Sequence[PagedSpan], runs: Sequence[Sequence[range]]) -> StepAttention:
        branching = [span.branching is not None for span in spans]
        if not any(branching):
            return self._lines.step(pool, spans, runs)
        if all(branching):
            return self._branches.step(pool, spans, runs)
        return _PartedStep(pool, spans, runs, self._lines, self._branches)


class _PartedStep:
    """A step of which one backend computes the lines and another the spans that branch."""

    def __init__(
        self,
        pool: KVPool,
        spans: Sequence[PagedSpan],
        runs: Sequence[Sequence[range]],
        lines: Backend,
        branches: Backend,
    ) -> None:
        self._parts: list[tuple[torch.Tensor, StepAttention]] = []
        begins = list(accumulate((span.rows for span in spans), initial=0))
        for backend, branching in ((lines, False), (branches, True)):
            part = [index for index, span in enumerate(spans) if (span.branching is not None) == branching]
            rows = [row for index in part for row in range(begins[index], begins[index + 1])]
            step = backend.step(pool, [spans[index] for index in part], [runs[index] for index in part])
            self._parts.append((torch.tensor(rows).to(pool.device), step))

    def attend(self, layer: int, window: int | None, q: torch.Tensor) -> torch.Tensor:
        context = q.new_empty((q.shape[0], q.shape[1] * q.shape[2]))
        for rows, step in self._parts:
            context.index_copy_(0, rows, step.attend(layer, window, q.index_select(0, rows)))
        return context


class SdpaBackend:
    """torch's scaled_dot_product_attention, a span at a time: exact, and on every device.

    A session whose pages are one run is read where it lies; of others the runs are put together first.
    """

    name = "sdpa"

    def step(self, pool: KVPool, spans: Sequence[PagedSpan], runs: Sequence[Sequence[range]]) -> StepAttention:
        return _SdpaStep(pool, spans, runs)


_Stored = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one session in one layer, those in sight, ``[1, kv_heads, positions, head_dim]``."""


class _SdpaStep:
    def __init__(self, pool: KVPool, spans: Sequence[PagedSpan], runs: Sequence[Sequence[range]]) -> None:
        self._pool = pool
        self._spans = spans
        self._runs = runs
        self._rows = [span.rows for span in spans]
        self._single = all(rows == 1 for rows in self._rows) and not any(span.branching for span in spans)
        self._seen: dict[int | None, tuple[list[Sight], list[Callable[[int], _Stored]]]] = {}

    def attend(self, layer: int, window: int | None, q: torch.Tensor) -> torch.Tensor:
        if window not in self._seen:
            sights = [sight_of(span, window, q.dtype, q.device) for span in self._spans]
            readers = [
                _reader(self._pool, _from(runs, seen.first)) for runs, seen in zip(self._runs, sights, strict=True)
            ]
            self._seen[window] = sights, readers
        sights, readers = self._seen[window]
        rows, heads, head_dim = q.shape
        if self._single:
            # The hot case, without a call that is not needed: a group's heads stand in for rows, as in attend_in.
            kv_heads = self._pool.keys.shape[2]
            queries = q.view(rows, 1, kv_heads, heads // kv_heads, head_dim).unbind(0)
            contexts = [
                scaled_dot_product_attention(query, *reader(layer))
                for query, reader in zip(queries, readers, strict=True)
            ]
            joined = torch.cat(contexts) if rows > 1 else contexts[0]
            return joined.reshape(rows, heads * head_dim)
        contexts = []
        for query, seen, reader in zip(q.split_with_sizes(self._rows), sights, readers, strict=True):
            keys, values = reader(layer)
            contexts.append(attend_in(seen, query, keys[0], values[0]))
        return torch.cat(contexts) if len(contexts) > 1 else contexts[0]


def _reader(pool: KVPool, runs: Sequence[range]) -> Callable[[int], _Stored]:
    """Gives the keys and values in these runs for any layer."""
    if len(runs) == 1:
        # One view of all layers, taken apart once, costs a tenth of a view made in each layer.
        keys, values = (
            store.narrow(1, runs[0].start, len(runs[0])).transpose(1, 2).unsqueeze(1).unbind(0)
            for store in (pool.keys, pool.values)
        )
        return list(zip(keys, values, strict=True)).__getitem__

    # One copy of single positions by number: a piece for each run costs many times as much where runs are short.
    slots = torch.cat([torch.arange(run.start, run.stop) for run in runs]).to(pool.device)

    def gather(layer: int) -> _Stored:
        keys, values = (store.index_select(0, slots).transpose(0, 1).unsqueeze(0) for store in pool.layer(layer))
        return keys, values

    return gather


def _from(runs: Sequence[range], first: int) -> list[range]:
    """The runs without their first ``first`` slots."""
    left: list[range] = []
    for run in runs:
        if first < len(run):
            left.append(run[first:])
        first = max(0, first - len(run))
    return left


BACKENDS = ("auto", "sdpa", "varlen", "flash")
"""What can be wanted. ``auto``: on CUDA in half precision the first of flash, where it reads pages of this size, and
varlen that is there; else sdpa."""


def choose_backend(
    device: torch.device | str,
    dtype: torch.dtype,
    wanted: str = "auto",
    head_dim: int | None = None,
    page_positions: int = FLASH_PAGE_POSITIONS,
) -> Backend:
    """The backend for a pool of this dtype and pages of so many positions, and of this size of heads where it is known.

    Raises:
        ValueError: ``wanted`` is none of ``BACKENDS``.
        BackendMissing: it cannot run here.
    """
    if wanted not in BACKENDS:
        raise ValueError(f"there is no attention backend {wanted!r}; choose among {', '.join(BACKENDS)}")
    for name, make in (("flash", flash), ("varlen", torch_varlen)):
        if wanted not in (name, "auto"):
            continue
        if wanted == "auto" and name == "flash" and page_positions % FLASH_PAGE_POSITIONS:
            continue  # It would have keys and values copied in each layer; the next one reads pages of any size.
        reason = _unfit(torch.device(device), dtype, head_dim)
        try:
            if reason is None:
                return LinesBackend(make())
        except ImportError as error:
            reason = str(error)
        if wanted == name:
            raise BackendMissing(f"attention backend {name!r} cannot run here: {reason}. 'sdpa' and 'auto' can")
    return SdpaBackend()


def _unfit(device: torch.device, dtype: torch.dtype, head_dim: int | None) -> str | None:
    """Why no CUDA kernel can be used, if so."""
    if device.type != "cuda":
        return f"it needs a CUDA device, not {device.type!r}"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"it computes in bfloat16 and float16, not {dtype}"
    if head_dim is not None and (head_dim % 8 or head_dim > MAX_HEAD_DIM):
        return f"it takes heads of multiples of 8 up to {MAX_HEAD_DIM}, not of {head_dim}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs an Ampere GPU or newer"
    return None
