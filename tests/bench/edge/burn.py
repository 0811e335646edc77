"""Uses up a device's quota while others are measured, as a device that computes beside them would: products, one after
the other, on a core if that is named. A line "burn" begins it and "rest" ends it; it ends with its input."""

from __future__ import annotations

import os
import sys
import threading

import numpy

_burning = threading.Event()


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
    one = numpy.random.default_rng(1).standard_normal((384, 1024), dtype=numpy.float32)
    other = one.T.copy()
    while _burning.wait():
        one @ other
