"""When the requests of an open-loop load are due: settled beforehand, whatever the server does. Pure."""

from __future__ import annotations

import random
from typing import Literal


def due_times(arrivals: Literal["poisson", "constant"], rate: float, seconds: float, seed: int) -> list[float]:
    """Seconds from the begin, rising, below ``seconds``; the first of constant ones is at 0.

    rate: requests a second. Poisson arrivals come as those of many people do who know nothing of one another: their
    gaps are drawn, the same for the same rate and seed. There is one request at least.
    """
    if arrivals == "constant":
        return [number / rate for number in range(max(1, round(rate * seconds)))]
    draw = random.Random(f"{seed} {rate:g}")
    times: list[float] = []
    at = draw.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += draw.expovariate(rate)
    return times or [0.0]
