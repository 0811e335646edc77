"""Uses up a device's quota while others are measured, as a device that computes beside them would: products, one after
the other, on a core if that is named. A line "burn" begins it and "rest" ends it; it ends with its input."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from itertools import cycle

import numpy

ROWS, SIZE, MATRICES = 64, 1024, 16
"""Their weights come from memory, as those of a model's layers: 64 MiB are more than caches hold."""

_burning = threading.Event()


def streaming_products() -> Iterator[object]:
    """One after the other, for ever."""
    random = numpy.random.default_rng(1)
    rows = random.standard_normal((ROWS, SIZE), dtype=numpy.float32)
    for matrix in cycle([random.standard_normal((SIZE, SIZE), dtype=numpy.float32) for _ in range(MATRICES)]):
        yield rows @ matrix


def _listen() -> None:
    for line in sys.stdin:
        if line.strip() == "burn":
            _burning.set()
        else:
            _burning.clear()
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.sched_setaffinity(0, {int(sys.argv[1])})
    threading.Thread(target=_listen, daemon=True).start()
    products = streaming_products()
    while _burning.wait():
        next(products)
