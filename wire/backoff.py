"""How long to wait before dialling again. Pure."""

from __future__ import annotations

FIRST_S = 0.25
LONGEST_S = 10.0


def delay_s(attempt: int, random: float) -> float:
    """Seconds before attempt number ``attempt`` (0 = the first repeat), with full jitter.

    ``random`` is uniform in [0, 1): devices that lost the same server come back spread out, not all at once.
    """
    return random * min(LONGEST_S, FIRST_S * 2.0 ** min(attempt, 16))
