"""Looks at this machine's cores: by what the kernel says in /proc, and by how long a little work takes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import thread_time

WORK = 20_000
"""Additions: about a millisecond."""

STAT, PRESSURE = Path("/proc/stat"), Path("/proc/pressure/cpu")


@dataclass(frozen=True)
class Sample:
    """One look at all cores together; times are in the same unit, counted since the machine started.

    Attributes:
        busy, total: time that something ran, and all time; what others took is in the latter only.
        steal: time the machine below gave to others.
        running: programs that ran or could have.
        waited_s: time in which some program waited for a core; None where the kernel does not say.
        work_s: of a core, in seconds, that work took which is always the same; 0 where none was done. Waiting for the
            core is not in it: what makes it longer is a slower clock, or neighbours that share core or caches.
    """

    busy: float
    total: float
    steal: float
    running: int
    waited_s: float | None
    work_s: float = 0.0


def parse_sample(stat: str, pressure: str | None) -> Sample:
    """What /proc/stat and /proc/pressure/cpu say. Raises ValueError where they say something else."""
    lines = {words[0]: words[1:] for words in map(str.split, stat.splitlines()) if words}
    if "cpu" not in lines or "procs_running" not in lines:
        raise ValueError("/proc/stat has no line cpu or procs_running")
    user, nice, system, idle, iowait, irq, softirq, steal = map(float, lines["cpu"][:8])
    busy = user + nice + system + irq + softirq
    waited_s = None
    if pressure is not None:
        some = next(line for line in pressure.splitlines() if line.startswith("some"))
        waited_s = float(some.rsplit("total=", 1)[1]) / 1e6
    return Sample(busy, busy + idle + iowait + steal, steal, int(lines["procs_running"][0]), waited_s)


def sample() -> Sample:
    """The machine now."""
    looked = parse_sample(STAT.read_text(), PRESSURE.read_text() if PRESSURE.exists() else None)
    return replace(looked, work_s=work_s())


def work_s() -> float:
    """Seconds of a core that ``WORK`` additions take this thread."""
    began, total = thread_time(), 0
    for each in range(WORK):
        total += each
    return thread_time() - began
