"""Wakes up on one core, all the time, and does nothing: so that quotas hold to a fraction of their period.

    python -m bench.edge.ticks CORE

Who runs alone on a core is charged for it at the system's clock tick, every 4 ms on most machines: with a quota of
1.2 ms in 10 ms it runs for 4 ms and then rests for 24. Whenever something else wakes up on that core it is charged too.
It ends with its input.
"""

from __future__ import annotations

import os
import sys
import threading
import time

EVERY_S = 0.0005


def _listen() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    threading.Thread(target=_listen, daemon=True).start()
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while True:
        time.sleep(EVERY_S)
