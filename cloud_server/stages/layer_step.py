"""One step in the layers of one process: rows in, rows out, in halves where memory is short.

It has no memory of sessions. A step says for each span which pages it has and where its rows go, so a step that failed
half-way is simply run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cloud_server.cache.batch import PagedBatch
from cloud_server.cache.pool import KVPool, Moves
from cloud_server.cache.pool_attention import Backend
from cloud_server.cache.span import PagedSpan
from split_model.device import wait_for
from split_model.stack import Stack


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


class LayerStep:
    """The layers of this process and their pool, called on one thread."""

    def __init__(self, stack: Stack, pool: KVPool, backend: Backend) -> None:
        self.stack = stack
        self.pool = pool
        self.backend = backend

    def __call__(self, hidden: torch.Tensor, spans: Sequence[PagedSpan], moves: Moves = ()) -> torch.Tensor:
        """Make the moves, then compute ``hidden [rows, hidden]`` of all spans, one after the other; returns outputs of
        the same shape, where the layers are. ``hidden`` may be elsewhere.

        Where memory runs out the step becomes two smaller ones, down to single rows. Raises ``StepFailed``, and
        ``DeviceLost`` where a GPU is gone, which the next step would not mend.
        """
        try:
            self.pool.move(moves)
            hidden = hidden.to(self.stack.device)
            return self._run(hidden, spans)
        except (MemoryError, RuntimeError) as error:
            raise StepFailed(type(error).__name__) from error
        finally:
            wait_for(self.stack.device)

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


def finite_spans(outputs: torch.Tensor, spans: Sequence[PagedSpan]) -> list[bool]:
    """For each span, whether all of its rows of ``outputs`` are finite."""
    if bool(torch.isfinite(outputs).all()):
        return [True] * len(spans)
    parts = outputs.split_with_sizes([span.rows for span in spans])
    return [bool(torch.isfinite(part).all()) for part in parts]


def _out_of_memory(error: BaseException) -> bool:
    # The CPU's allocator raises a plain RuntimeError and says so in words only.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def _halves(spans: Sequence[PagedSpan]) -> tuple[Sequence[PagedSpan], Sequence[PagedSpan]]:
    """The same rows as two steps: half of the spans each, or the two halves of a single one."""
    if len(spans) > 1:
        middle = len(spans) // 2
        return spans[:middle], spans[middle:]
    first, second = spans[0].halves()
    return [first], [second]
