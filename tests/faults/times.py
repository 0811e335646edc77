"""When a process noticed something, by its log, and how long who waited for tokens had to wait.

Logs tell the time of day (``--log-form json``, UTC, microseconds), so a fault is timed by that clock too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any


def lines_of(log: Path) -> Iterable[dict[str, Any]]:
    """What a process has said so far, each line's members; whatever is no JSON is left out."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:  # Its end is still to be written.
                continue


def noticed_s(log: Path, since: float, *events: str, about: str = "") -> float | None:
    """Seconds from ``since`` (``time.time``) until a process said one of these events first, of a URL with ``about`` in
    it; None where it has not."""
    for line in lines_of(log):
        if line.get("event") in events and about in line.get("url", ""):
            at = datetime.fromisoformat(line["timestamp"].replace("Z", "+00:00")).timestamp()
            if at >= since:
                return at - since
    return None


def longest_pause(since: float, times: Sequence[float]) -> float:
    """Seconds of the longest wait for text after ``since``, of one that began before it the rest; 0 where no text came
    after. By one clock, ``time.monotonic``.

    What had left before a fault still comes behind it: the first piece afterwards is no sign of recovery.
    """
    later = [since, *(each for each in times if each > since)]
    return max((after - before for before, after in pairwise(later)), default=0.0)
