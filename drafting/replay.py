"""Small fixed work recorded once as a CUDA graph and replayed: launching its kernels one by one takes a GPU longer than
running them. Elsewhere the work is simply called.

A graph reads and writes memory of its own, so what goes in is copied there and what comes out is copied away: a few
rows. It is recorded once for a shape, and tells the host nothing: work that asks for a number cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
import torch

log = structlog.get_logger()

Tensors = tuple[torch.Tensor, ...]
Work = Callable[..., Tensors]

SHAPES = 4
"""Different shapes of its arguments that a piece of work is recorded for; of any other it is called."""


def replayed(work: Work, device: torch.device, record: Callable[[Work, Tensors], Work] | None = None) -> Work:
    """``work``, which makes tensors of tensors and keeps nothing, so that it is fast on ``device``.

    record: makes the recording of a work for arguments of one shape; that of CUDA where nothing is said.
    """
    if record is None:
        if device.type != "cuda":
            return work
        record = recorded
    return _Replayed(work, record)


class _Replayed:
    """A piece of work and its recordings, by the shapes of its arguments."""

    def __init__(self, work: Work, record: Callable[[Work, Tensors], Work]) -> None:
        self._work = work
        self._record = record
        self._recordings: dict[Any, Work] = {}

    def __call__(self, *given: torch.Tensor) -> Tensors:
        key = tuple((each.shape, each.dtype) for each in given)
        found = self._recordings.get(key)
        if found is None:
            found = self._recordings[key] = self._recording(given)
        return found(*given)

    def _recording(self, given: Tensors) -> Work:
        if len(self._recordings) >= SHAPES:
            return self._work
        try:
            return self._record(self._work, given)
        except RuntimeError as error:
            log.warning("work is not replayed as a graph, and takes longer", why=str(error)[:200])
            self._recordings = dict.fromkeys(self._recordings, self._work)
            self._record = _as_it_is
            return self._work


def _as_it_is(work: Work, given: Tensors) -> Work:
    return work


def recorded(work: Work, given: Tensors) -> Work:
    """The work as a CUDA graph, for arguments as those given. Raises RuntimeError where it cannot be recorded."""
    inputs = tuple(each.clone() for each in given)
    aside = torch.cuda.Stream(given[0].device)  # type: ignore[no-untyped-call]
    now = torch.cuda.current_stream(given[0].device)
    aside.wait_stream(now)
    with torch.cuda.stream(aside):
        for _ in range(2):  # What libraries allocate when they are first used would be no part of the graph.
            work(*inputs)
    now.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # Other threads may go on using the GPU meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = work(*inputs)

    def replay(*given: torch.Tensor) -> Tensors:
        for own, new in zip(inputs, given, strict=True):
            own.copy_(new)
        graph.replay()
        return tuple(each.clone() for each in outputs)

    return replay
