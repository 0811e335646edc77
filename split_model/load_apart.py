"""Loading on a thread that ends afterwards, so that the threads of the matrix products belong to one thread alone.

OpenMP keeps a team of threads for every thread that has run a parallel operation. With a second team in the process its
barriers put threads to sleep instead of letting them spin, and a step of many small operations takes a third longer. A
team goes with its thread: so weights are read and packed on a thread of their own, and later one thread computes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Value = TypeVar("Value")


def load_apart(load: Callable[[], Value]) -> Value:
    """What ``load`` returns or raises, run on a thread that is gone when this returns."""
    with ThreadPoolExecutor(1, thread_name_prefix="load") as thread:
        return thread.submit(load).result()
