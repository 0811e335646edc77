"""How many rows the next step may hold, from what steps are known to take. Pure.

A chunk in a step makes every short row in it later. How much later may be said as a factor: with slack 1.5 a step with
chunks takes at most half as long again as the short work alone would. The chunks' work has to be done at some time, and
the sooner it is the sooner there are more rows to a step: when few decode and many wait for their prompts, the factor
grows.
"""

from __future__ import annotations

from collections.abc import Callable

from cloud_server.scheduler import CHUNK_SHARE, MIN_CHUNK_ROWS, Budget, Demand

MINORITY = 4
"""Decoders are protected in full while they are this many times those who wait for their prompts."""


def step_budget(predict: Callable[[int], float], demand: Demand, slack: float, max_rows: int) -> Budget:
    """The next step's budget.

    Args:
        predict: seconds that a step of so many rows takes, monotone (the paper's g, Eq. 1 and 2).
        demand: what could run in the step.
        slack: how many times longer than without chunks the short work may take while those who decode are the many.
        max_rows: most rows of any step.
    """
    if demand.short_rows == 0 or demand.chunk_sessions == 0:
        return Budget(max_rows, max_rows)
    # More short work than this leaves chunks their share all the same, so it is not all in this step.
    short = min(demand.short_rows, max_rows - max_rows // CHUNK_SHARE)
    waiting = max(1.0, MINORITY * demand.chunk_sessions / demand.short_sessions)
    allowed = (1 + (slack - 1) * waiting) * predict(short)
    fits, room = 0, max_rows - short
    while fits < room:
        middle = (fits + room + 1) // 2
        if predict(short + middle) <= allowed:
            fits = middle
        else:
            room = middle - 1
    return Budget(max_rows, min(max(fits, MIN_CHUNK_ROWS), max_rows - short))
