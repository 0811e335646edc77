"""Steps before the first: kernels are compiled, and memory is taken, for the numbers of rows that occur.

A step of another size may need a kernel that the process has not had yet, or larger buffers; the first request should
not be the one that waits for them. Nothing learns from these steps, and they leave nothing but numbers in free pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

import structlog
import torch

from cloud_server.cache.span import PagedSpan
from split_model.warming import Warming

if TYPE_CHECKING:
    from cloud_server.stages.runner import LayerStep, Ran

Run = Callable[[Sequence[torch.Tensor], Sequence[PagedSpan]], Awaitable["Ran"]]

log = structlog.get_logger()


async def warm_up(run: Run, step: LayerStep, most_rows: int) -> None:
    """Have ``run`` compute steps of up to ``most_rows`` rows, whose pages nobody uses yet.

    Args:
        step: the layers of this process; other stages warm up as the steps pass through them.

    Raises what ``run`` does.
    """
    began = monotonic()
    pool = step.pool
    warming = Warming(min(most_rows, pool.pages * pool.page_positions - 1), began)
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
