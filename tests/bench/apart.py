"""An object that is made and used in a process of its own, so that what is compared has nothing in common.

OpenMP keeps a team of threads for every Python thread that has run a parallel operation of torch. With a second team in
the process, each parallel operation of either waits for a sleeping thread instead of a spinning one: a step of 36 ms
takes 50. So no two engines share a process, and the process that compares them computes nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import TracebackType
from typing import Any

import torch

_made: Any = None


class Apart:
    """``factory(*arguments)`` in a new process with this one's environment; all its calls come from one thread.

    Factory, arguments and results have to be picklable, and the object need not be. Where it has a ``close``, that is
    called at the end.
    """

    def __init__(self, factory: Callable[..., Any], *arguments: Any, threads: int) -> None:
        """``threads`` are torch's there. Raises what the factory raises, BrokenProcessPool where the process ends."""
        self._pool = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(threads,)
        )
        try:
            self._pool.submit(_make, factory, arguments).result()
        except BaseException:
            self._pool.shutdown()
            raise

    def __enter__(self) -> Apart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, method: str, *arguments: Any) -> Any:
        """The object's method called, and its result; raises what it raises, BrokenProcessPool where it has ended."""
        return self._pool.submit(_call, method, arguments).result()

    def close(self) -> None:
        """Close the object and end the process."""
        try:
            self._pool.submit(_close).result()
        finally:
            self._pool.shutdown()


def _make(factory: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    global _made
    _made = factory(*arguments)


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_made, method)(*arguments)


def _close() -> None:
    if hasattr(_made, "close"):
        _made.close()
