"""Who runs a step: this process on a thread of its own, or (``pipeline.py``) stages in several processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Protocol

import structlog
import torch

from cloud_server.cache.pool import Moves
from cloud_server.cache.span import PagedSpan
from cloud_server.stages.layer_step import LayerStep, Ran, StepFailed, finite_spans
from split_model.device import DeviceLost
from split_model.warming import Warming

STEP_WITHIN_S = 300.0
"""A step that has not ended by then never will: devices have long given up what they wanted of it."""

log = structlog.get_logger()


class StageLost(Exception):
    """A stage is gone, and with it the keys and values of every session."""


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
        """Run one step. ``hidden`` are the rows of all spans in order, tensors ``[rows, hidden]``, at least one. Before
        anything is computed, ``moves`` are made in every layer. At most ``depth`` steps at once.

        Raises:
            StepFailed: this step failed, the next may not. Its moves may not have been made.
            StageLost: nothing can be run until ``start``.
            DeviceLost: nothing can be run in this process any more.
        """
        ...

    async def stop(self) -> None:
        """End threads and processes. Safe to call twice."""
        ...


class LocalRunner:
    """A ``Runner`` with all layers in this process, on a compute thread: the event loop goes on meanwhile.

    Args:
        warm_rows: see ``warm_up``.
    """

    depth = 1
    whole = True

    def __init__(self, step: LayerStep, warm_rows: int = 0) -> None:
        self._step = step
        self._warm_rows = warm_rows
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="step")

    async def start(self) -> None:
        await warm_up(self.run, self._step, self._warm_rows)

    async def run(self, hidden: Sequence[torch.Tensor], spans: Sequence[PagedSpan], moves: Moves = ()) -> Ran:
        loop, overdue = asyncio.get_running_loop(), False
        running = loop.run_in_executor(self._compute, self._run, hidden, spans, moves)

        def give_up() -> None:
            nonlocal overdue
            overdue = True
            running.cancel()

        timer = loop.call_later(STEP_WITHIN_S, give_up)  # `asyncio.wait` takes three times as long.
        try:
            return await running
        except asyncio.CancelledError:
            if overdue:
                raise DeviceLost(f"a step has not ended within {STEP_WITHIN_S:g} s") from None
            raise
        finally:
            timer.cancel()

    async def stop(self) -> None:
        self._compute.shutdown(wait=False, cancel_futures=True)

    def _run(self, hidden: Sequence[torch.Tensor], spans: Sequence[PagedSpan], moves: Moves) -> Ran:
        began = perf_counter()
        rows = hidden[0] if len(hidden) == 1 else torch.cat(list(hidden))
        outputs = self._step(rows, spans, moves).cpu()
        return Ran(outputs, finite_spans(outputs, spans), perf_counter() - began)


async def warm_up(
    run: Callable[[Sequence[torch.Tensor], Sequence[PagedSpan]], Awaitable[Ran]], step: LayerStep, most_rows: int
) -> None:
    """Have ``run`` compute steps before the first, of the sizes that occur up to ``most_rows`` rows; 0: of none.

    A step of another size may need a kernel that the process has not had yet, or larger buffers; the first request
    should not be the one that waits for them. Nothing learns from these steps, and they leave nothing but numbers in
    free pages. Where a size fails, larger ones are left out: whoever needs such a step will be told.

    Args:
        step: the layers of this process; other stages warm up as the steps pass through them.

    Raises:
        StageLost: as ``run`` does.
    """
    if not most_rows:
        return
    began, pool = monotonic(), step.pool
    warming = Warming(min(most_rows, pool.pages * pool.page_positions - 1), began)
    with suppress(StepFailed):
        while (rows := warming.next(monotonic())) is not None:
            hidden = _noughts(rows, step)
            pages = range(-(-(rows + 1) // pool.page_positions))
            await run([hidden], [PagedSpan(pages, 0, rows)])
            if warming.done == 1:
                await run([hidden[:1]], [PagedSpan(pages, rows, 1)])
        log.info("warmed up", seconds=round(monotonic() - began, 1), sizes=warming.done)


def _noughts(rows: int, step: LayerStep) -> torch.Tensor:
    """[rows, hidden] without an operation of torch: on this thread, the event loop's, one of so many numbers would make
    a second team of OpenMP threads, beside which every later step takes half as long again."""
    hidden_size, dtype = step.stack.spec.hidden_size, step.stack.dtype
    return torch.frombuffer(bytearray(rows * hidden_size * dtype.itemsize), dtype=dtype).view(rows, hidden_size)
