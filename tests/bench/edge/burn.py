"""Uses up a device's quota while others are measured, as a device that computes beside them would: products, one after
the other, until it is ended. It is stopped and woken by signals."""

from __future__ import annotations

import numpy

if __name__ == "__main__":
    one = numpy.random.default_rng(1).standard_normal((384, 1024), dtype=numpy.float32)
    other = one.T.copy()
    while True:
        one @ other
