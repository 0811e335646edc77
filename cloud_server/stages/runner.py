"""Who runs a step: this process on a thread of its own, or (``pipeline.py``) stages in several processes.

A runner has no memory of sessions. A step says for each span which pages it has and where its rows go, so a step that
failed half-way can simply be run again, and a stage needs no messages beside the steps themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch

from cloud_server.cache.attention import Backend
from cloud_server.cache.batch import PagedBatch
from cloud_server.cache.pool import KVPool, Moves
from cloud_server.cache.span import PagedSpan
from cloud_server.stages.warm_up import warm_up
from split_model.stack import Stack


class StageLost(Exception):
    """A stage is gone, and with it the keys and values of every session."""


class StepFailed(Exception):
    """The step could not be computed, even row by row; other steps can."""


@dataclass(frozen=True)
class Ran:
    """What a step gave.

    Attributes:
        outputs: ``[rows, hidden]``, the spans' rows one after the other.
        finite: for each span, whether all its outputs are numbers. NaN or infinity in a row goes through every layer
            to that row's output and those of its session behind it, and to nobody else's.
        seconds: how long it was being computed, all stages together.
    """

    outputs: torch.Tensor
    finite: Sequence[bool]
    seconds: float


class Runner(Protocol):
    """Runs steps, in the order they are given."""

    @property
    def depth(self) -> int:
        """Steps that may be under way at once: the number of stages."""
        ...

    @property
    def whole(self) -> bool:
        """Whether all stages are there, as far as is known now."""
        ...

    async def start(self) -> None:
        """Make ready; returns once steps can be run. Also after ``StageLost``: what was in the pages is then gone."""
        ...

    async def run(self, hidden: Sequence[torch.Tensor], spans: Sequence[PagedSpan], moves: Moves = ()) -> Ran:
        """One step. ``hidden`` are the rows of all spans in order, tensors ``[rows, hidden]``, at least one. Before
        anything is computed, ``moves`` are made in every layer. At most ``depth`` steps at once.

        Raises:
            StepFailed: this step failed, the next may not. Its moves may not have been made.
            StageLost: nothing can be run until ``start``.
        """
        ...

    async def stop(self) -> None:
        """End threads and processes. Safe to call twice."""
        ...


class LayerStep:
    """The layers of this process and their pool, called on one thread: shared by the local runner and by stages."""

    def __init__(self, stack: Stack, pool: KVPool, backend: Backend) -> None:
        self.stack = stack
        self.pool = pool
        self.backend = backend

    def __call__(self, hidden: torch.Tensor, spans: Sequence[PagedSpan], moves: Moves = ()) -> torch.Tensor:
        """``hidden [rows, hidden]`` of all spans, one after the other -> outputs of the same shape, behind ``moves``.

        Out of memory makes two smaller steps of one, down to single rows. Raises ``StepFailed``.
        """
        try:
            self.pool.move(moves)
        except (MemoryError, RuntimeError) as error:
            raise StepFailed(type(error).__name__) from error
        return self._run(hidden, spans)

    def _run(self, hidden: torch.Tensor, spans: Sequence[PagedSpan]) -> torch.Tensor:
        try:
            with torch.inference_mode():
                return self.stack.run(hidden, PagedBatch(self.pool, spans, self.backend))
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise StepFailed(type(error).__name__) from error
        if hidden.shape[0] == 1:
            raise StepFailed("out of memory on a single row")
        parts, begin = [], 0
        for half in _halves(spans):
            rows = sum(span.rows for span in half)
            parts.append(self._run(hidden[begin : begin + rows], half))
            begin += rows
        return torch.cat(parts)


class LocalRunner:
    """All layers in this process, on a compute thread: the event loop goes on while the matrix products run.

    Args:
        warm_rows: rows of the largest step to be ready for from the start; 0: of none.
    """

    depth = 1
    whole = True

    def __init__(self, step: LayerStep, warm_rows: int = 0) -> None:
        self._step = step
        self._warm_rows = warm_rows
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="step")

    async def start(self) -> None:
        """See ``Runner.start``."""
        if self._warm_rows:
            with suppress(StepFailed):  # Whoever needs such a step will be told.
                await warm_up(self.run, self._step, self._warm_rows)

    async def run(self, hidden: Sequence[torch.Tensor], spans: Sequence[PagedSpan], moves: Moves = ()) -> Ran:
        """See ``Runner.run``."""
        return await asyncio.get_running_loop().run_in_executor(self._compute, self._run, hidden, spans, moves)

    async def stop(self) -> None:
        """See ``Runner.stop``."""
        self._compute.shutdown(wait=False, cancel_futures=True)

    def _run(self, hidden: Sequence[torch.Tensor], spans: Sequence[PagedSpan], moves: Moves) -> Ran:
        began = perf_counter()
        rows = hidden[0] if len(hidden) == 1 else torch.cat(list(hidden))
        # Frames are in the host's memory, whatever the layers' device is.
        outputs = self._step(rows.to(self._step.stack.device), spans, moves).cpu()
        return Ran(outputs, finite_spans(outputs, spans), perf_counter() - began)


def finite_spans(outputs: torch.Tensor, spans: Sequence[PagedSpan]) -> list[bool]:
    """For each span, whether all of its rows of ``outputs`` are finite."""
    if bool(torch.isfinite(outputs).all()):
        return [True] * len(spans)
    parts = outputs.split_with_sizes([span.rows for span in spans])
    return [bool(torch.isfinite(part).all()) for part in parts]


def _out_of_memory(error: BaseException) -> bool:
    # The CPU's allocator raises a plain RuntimeError and says so in words only.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def _halves(spans: Sequence[PagedSpan]) -> tuple[list[PagedSpan], list[PagedSpan]]:
    """The same rows as two steps: half of the spans each, or the two halves of a single one."""
    if len(spans) > 1:
        middle = len(spans) // 2
        return list(spans[:middle]), list(spans[middle:])
    first, second = spans[0].halves()
    return [first], [second]
