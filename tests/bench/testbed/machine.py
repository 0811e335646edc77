"""Was the machine that carries a testbed what limited it: quotas before, what its cores did meanwhile, a verdict.

with MachineWatch(quotas, lambda: {name: bed.usage(name) for name in quotas}) as watch:
    ...
watch.report().bottleneck                # '' or a sentence
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Protocol

from bench.testbed.samples import Sample, sample

SAMPLE_S = 0.5

FULL = 0.95
"""A machine so busy has nothing left."""

FULL_SHARE = 0.1
"""For so much of the time it may be full and have been no bottleneck."""

USED_UP = 0.9
"""Who uses so much of a quota uses it up."""

STOLEN = 0.05
"""More of a virtual machine's time than this may not go to others."""

WITHIN_S = 10.0


class Used(Protocol):
    """What a host has used so far, in seconds of one core."""

    @property
    def cpu_s(self) -> float:
        """It ran."""

    @property
    def throttled_s(self) -> float:
        """Its quota kept it from running."""


@dataclass(frozen=True)
class MachineReport:
    """What the machine did during a run.

    Attributes:
        seconds: of the run.
        cores: of the machine.
        quota_cores: the sum of all hosts' quotas.
        used_cores: what the hosts with a quota used of it, on average.
        busy_median, busy_p90: share of all cores' time, over samples.
        full: share of samples in which nothing was left.
        steal: share of all cores' time that went to other machines.
        running_p90: programs that ran or could have.
        waiting: share of time in which some program waited for a core; None where the kernel does not say.
        work_s: seconds of a core that work took which is always the same, the median of samples: two runs in which
            it differs had cores of different speeds.
        throttled: seconds that the threads of each host were held back by its quota, in each second of the run.
        bottleneck: '' or, in a sentence, how the machine itself limited the run.
    """

    seconds: float
    cores: int
    quota_cores: float
    used_cores: float
    busy_median: float
    busy_p90: float
    full: float
    steal: float
    running_p90: float
    waiting: float | None
    work_s: float
    throttled: dict[str, float]
    bottleneck: str


def too_large(quota_cores: float, cores: int) -> str:
    """'' where quotas fit a machine, else a sentence."""
    if quota_cores <= cores:
        return ""
    return f"The quotas of all hosts are {quota_cores:.2f} cores together, and the machine has {cores}."


def bottleneck(quota_cores: float, cores: int, used_cores: float, full: float, steal: float) -> str:
    """How the machine itself limited a run, '' where it did not; the arguments are as in ``MachineReport``.

    It may be full where the quotas fill it and are used up.
    """
    if large := too_large(quota_cores, cores):
        return large
    if steal > STOLEN:
        return f"Other machines took {steal:.0%} of this one's cores."
    filled = quota_cores >= USED_UP * cores and used_cores >= USED_UP * quota_cores
    if full > FULL_SHARE and not filled:
        return (
            f"The machine was busier than {FULL:.0%} for {full:.0%} of the run, although the hosts used only "
            f"{used_cores:.2f} of {quota_cores:.2f} cores of quota."
        )
    return ""


class MachineWatch:
    """Looks at the machine now and then, on a thread; a context manager, at whose end a look that failed is raised.

    Args:
        quotas: of each host, in cores; 0 is none.
        used: what each host has used so far.
    """

    def __init__(self, quotas: Mapping[str, float], used: Callable[[], Mapping[str, Used]]) -> None:
        self._quotas = dict(quotas)
        self._used = used
        self._samples: list[Sample] = []
        self._ended = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="machine", daemon=True)

    def __enter__(self) -> MachineWatch:
        self._first = self._used()
        self._began = monotonic()
        self._samples.append(sample())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End. Raises what a look raised, or RuntimeError where the thread does not end, unless something else has."""
        self._ended.set()
        self._thread.join(WITHIN_S)
        if error is not None:
            return
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise RuntimeError(f"waited {WITHIN_S:g} s in vain for the last look at the machine")
        self._samples.append(sample())
        self._seconds = monotonic() - self._began
        self._last = self._used()

    def report(self) -> MachineReport:
        """The verdict; once it has ended."""
        return report(self._samples, self._seconds, self._quotas, self._first, self._last)

    def _run(self) -> None:
        try:
            while not self._ended.wait(SAMPLE_S):
                self._samples.append(sample())
        except BaseException as error:
            self._error = error


def report(
    samples: Sequence[Sample],
    seconds: float,
    quotas: Mapping[str, float],
    first: Mapping[str, Used],
    last: Mapping[str, Used],
) -> MachineReport:
    """The report of a run from two samples or more, and from what hosts had used before and after."""
    cores = os.cpu_count() or 1
    between = [(before, after) for before, after in pairwise(samples) if after.total > before.total]
    busy = [(after.busy - before.busy) / (after.total - before.total) for before, after in between] or [0.0]
    stolen = [(after.steal - before.steal) / (after.total - before.total) for before, after in between] or [0.0]
    lost = samples[-1].steal - samples[0].steal
    steal = lost / max(samples[-1].total - samples[0].total, 1e-9)
    full = sum(one + other > FULL for one, other in zip(busy, stolen, strict=True)) / len(busy)
    quota_cores = sum(quotas.values())
    used_cores = sum(last[name].cpu_s - first[name].cpu_s for name, quota in quotas.items() if quota) / seconds
    began, ended = samples[0].waited_s, samples[-1].waited_s
    return MachineReport(
        seconds=seconds,
        cores=cores,
        quota_cores=quota_cores,
        used_cores=used_cores,
        busy_median=statistics.median(busy),
        busy_p90=_p90(busy),
        full=full,
        steal=steal,
        running_p90=_p90([each.running for each in samples]),
        waiting=None if began is None or ended is None else (ended - began) / seconds,
        work_s=statistics.median(each.work_s for each in samples),
        throttled={name: (last[name].throttled_s - first[name].throttled_s) / seconds for name in quotas},
        bottleneck=bottleneck(quota_cores, cores, used_cores, full, steal),
    )


def _p90(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 9 // 10]
