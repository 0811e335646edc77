"""A machine that could not carry a testbed is found out: by quotas before, and by what its cores did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from threading import current_thread

import pytest
from bench.testbed import machine
from bench.testbed.machine import MachineWatch, bottleneck, report, too_large
from bench.testbed.samples import Sample, parse_sample, sample

STAT = """cpu  100 20 30 400 50 6 7 80 9 0
cpu0 1 2 3 4 5 6 7 8 9 0
ctxt 5
procs_running 3
procs_blocked 0
"""


@dataclass(frozen=True)
class Used:
    """What a host has used."""

    cpu_s: float
    throttled_s: float


def test_what_the_kernel_says_is_read() -> None:
    """Times of all cores; waiting for a disk is idle, and what another machine took is not busy."""
    pressure = "some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=7\n"
    assert parse_sample(STAT, pressure) == Sample(163.0, 693.0, 80.0, 3, 2.5)
    assert parse_sample(STAT, None).waited_s is None
    with pytest.raises(ValueError, match="procs_running"):
        parse_sample("cpu 1 2 3 4 5 6 7 8\n", None)
    now = sample()
    assert 0 < now.work_s < 1
    assert 0 < now.busy <= now.total and now.running >= 1


def test_quotas_have_to_fit() -> None:
    """The sum against the cores, before anything runs."""
    assert too_large(2.0, 2) == ""
    assert too_large(2.5, 2) == "The quotas of all hosts are 2.50 cores together, and the machine has 2."


@pytest.mark.parametrize(
    ("quota", "used", "full", "steal", "says"),
    [
        (1.5, 1.0, 0.05, 0.01, ""),
        (1.5, 1.0, 0.2, 0.01, "busier than 95% for 20% of the run, although the hosts used only 1.00 of 1.50 cores"),
        (1.9, 1.85, 0.9, 0.01, ""),
        (1.9, 1.2, 0.9, 0.01, "busier than 95% for 90%"),
        (1.0, 0.99, 0.9, 0.01, "busier than 95% for 90%"),
        (1.5, 1.0, 0.0, 0.2, "Other machines took 20% of this one's cores"),
        (3.0, 1.0, 0.0, 0.0, "3.00 cores together"),
    ],
)
def test_the_verdict(quota: float, used: float, full: float, steal: float, says: str) -> None:
    """Full is no bottleneck where quotas that are used up fill the machine; stolen time is."""
    said = bottleneck(quota, 2, used, full, steal)
    assert says in said and bool(said) == bool(says)


def test_a_report_sums_samples_up() -> None:
    """Shares of all cores between samples; what hosts used between beginning and end; two looks in one tick are one."""
    samples = [
        Sample(0.0, 0.0, 0.0, 1, 1.0, 0.001),
        Sample(50.0, 100.0, 0.0, 2, 1.0, 0.004),
        Sample(50.0, 100.0, 0.0, 2, 1.5, 0.002),
        Sample(148.0, 200.0, 2.0, 5, 2.0, 0.001),
        Sample(158.0, 300.0, 2.0, 1, 3.0, 0.002),
    ]
    first = {"cloud": Used(1.0, 0.5), "load": Used(0.0, 0.0)}
    last = {"cloud": Used(5.0, 2.5), "load": Used(3.0, 0.0)}
    made = report(samples, 10.0, {"cloud": 0.5, "load": 0.0}, first, last)
    assert (made.busy_median, made.busy_p90, made.running_p90) == (0.5, 0.98, 5)
    assert (made.full, made.steal, made.waiting) == pytest.approx((1 / 3, 2 / 300, 0.2))
    assert made.work_s == 0.002
    assert (made.quota_cores, made.used_cores, made.throttled) == (0.5, 0.4, {"cloud": 0.2, "load": 0.0})
    assert made.cores == os.cpu_count() and made.seconds == 10.0 and "for 33% of the run" in made.bottleneck
    assert set(asdict(made)) >= {"cores", "quota_cores", "busy_median", "busy_p90", "steal", "throttled", "bottleneck"}
    empty = report([samples[0], samples[0]], 1.0, {}, {}, {})
    assert (empty.busy_median, empty.full, empty.steal, empty.bottleneck) == (0.0, 0.0, 0.0, "")


def test_a_look_that_fails_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end, as what it was; not in place of another failure."""
    monkeypatch.setattr(machine, "SAMPLE_S", 0.01)

    def broken() -> Sample:
        if current_thread().name == "machine":
            raise ValueError("/proc/stat is empty")
        return sample()

    monkeypatch.setattr(machine, "sample", broken)
    with pytest.raises(ValueError, match="is empty"), MachineWatch({}, dict):
        time.sleep(0.1)
    with pytest.raises(KeyError), MachineWatch({}, dict):
        time.sleep(0.1)
        raise KeyError


@pytest.mark.slow
@pytest.mark.system
def test_a_busy_machine_is_seen() -> None:
    """One program more than there are cores: full, somebody waits, and no quota was used for it."""
    spin = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(spin) for _ in range((os.cpu_count() or 1) + 1)]
    try:
        time.sleep(0.3)
        with MachineWatch({"cloud": 0.5}, lambda: {"cloud": Used(0.0, 0.0)}) as watch:
            time.sleep(1.6)
    finally:
        for program in programs:
            program.kill()
            program.wait()
    made = watch.report()
    assert made.busy_median > 0.9 and made.full > 0.5 and made.running_p90 >= len(programs)
    assert "although the hosts used only 0.00 of 0.50 cores" in made.bottleneck or "Other machines" in made.bottleneck
    assert made.waiting is None or made.waiting > 0.5
    assert 1.5 < made.seconds < 5.0
