"""Hosts and links are what the scenario says: speed, memory, bandwidth and delay, measured with real programs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.testbed.bed import Testbed
from bench.testbed.fields import BadScenario
from bench.testbed.inside import inside, is_ready
from bench.testbed.processes import PartFailed, Program
from bench.testbed.scenario import load
from checkpoints import DEMO

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("possible")]

SPIN = "while True: pass"
GREED = "held = []\nwhile True: held.append(bytearray(b'x') * 1_000_000)"
WITHIN_S = 60.0
TRIES = 3
"""Of a bandwidth."""

TAKE = """
import socket, time
with socket.create_server(("0.0.0.0", {port})) as listener:
    print("listening", flush=True)
    with listener.accept()[0] as came:
        size = len(came.recv(65536))
        began = time.perf_counter()
        first = size
        while data := came.recv(65536):
            size += len(data)
    print((size - first) / (time.perf_counter() - began))
"""
GIVE = """
import socket
with socket.create_connection(("{address}", {port})) as way:
    way.sendall(bytes({size}))
"""
ECHO = """
import socket
with socket.create_server(("0.0.0.0", {port})) as listener:
    print("listening", flush=True)
    with listener.accept()[0] as came:
        while data := came.recv(1):
            came.sendall(data)
"""
ASK = """
import socket, time
with socket.create_connection(("{address}", {port})) as way:
    way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(15):
        began = time.perf_counter()
        way.sendall(b"x")
        way.recv(1)
        print(time.perf_counter() - began)
"""


@pytest.fixture(scope="module")
def bed(possible: None, small_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """The small scenario; no test leaves it other than it was."""
    with Testbed(load(small_file), tmp_path_factory.mktemp("logs")) as made:
        yield made


def run(bed: Testbed, host: str, program: str) -> subprocess.Popen[str]:
    """A Python program on a host; its output can be read."""
    argv = [sys.executable, "-c", program]
    started: subprocess.Popen[str] = bed.spawn(host, argv, stdout=subprocess.PIPE, text=True)
    return started


def listening(bed: Testbed, host: str, program: str) -> subprocess.Popen[str]:
    """The same, once it says that it listens."""
    started = run(bed, host, program)
    assert started.stdout is not None and started.stdout.readline() == "listening\n"
    return started


def end(*programs: subprocess.Popen[str]) -> None:
    """Kill programs."""
    for each in programs:
        each.kill()
        each.communicate()


def bandwidth(bed: Testbed, source: str, sink: str, port: int, size: int) -> float:
    """MB a second at which one host's bytes arrive at the other."""
    taker = listening(bed, sink, TAKE.format(port=port))
    giver = run(bed, source, GIVE.format(address=bed.address(source, sink), port=port, size=size))
    rate, _ = taker.communicate(timeout=WITHIN_S)
    giver.communicate(timeout=WITHIN_S)
    return float(rate) / 1e6


def best_bandwidth(bed: Testbed, source: str, sink: str, port: int, size: int, set_mb_s: float) -> tuple[float, int]:
    """MB a second of the first try that comes near what is set, else of the best; and how many tries that took.

    A busy machine can only make bytes later, so one slow try says nothing of the link; no try may be faster than it.
    """
    best = 0.0
    for tries in range(1, TRIES + 1):
        reached = bandwidth(bed, source, sink, port + tries, size)
        assert reached < 1.1 * set_mb_s
        best = max(best, reached)
        if best > 0.8 * set_mb_s:
            break
    return best, tries


def round_trips_ms(bed: Testbed, source: str, sink: str, port: int) -> list[float]:
    """The times of single bytes to the other host and back."""
    echo = listening(bed, sink, ECHO.format(port=port))
    address, at = bed.endpoint(source, sink, port).split(":")
    asker = run(bed, source, ASK.format(address=address, port=at))
    times, _ = asker.communicate(timeout=WITHIN_S)
    end(echo)
    return [float(each) * 1e3 for each in times.split()]


def round_trip_ms(bed: Testbed, source: str, sink: str, port: int) -> float:
    """The median of these."""
    return statistics.median(round_trips_ms(bed, source, sink, port))


def test_bandwidth(bed: Testbed) -> None:
    """Each way of a link has its own, it can be changed, and the link's counters have seen every byte."""
    before = bed.bytes("near", "far")
    up_mb_s, ups = best_bandwidth(bed, "near", "far", 7100, 2_000_000, 2.0)
    down_mb_s, downs = best_bandwidth(bed, "far", "near", 7200, 1_000_000, 1.0)
    assert up_mb_s > 0.8 * 2.0 and down_mb_s > 0.8 * 1.0
    up, down = (now - then for now, then in zip(bed.bytes("far", "near"), before, strict=True))
    assert 2_000_000 * ups <= up < 2_100_000 * ups and 1_000_000 * downs <= down < 1_050_000 * downs
    link = bed.link("near", "far")
    try:
        link.set(down_mb_s=3.0)
        assert best_bandwidth(bed, "far", "near", 7300, 2_000_000, 3.0)[0] > 0.8 * 3.0
        assert (link.up_mb_s, link.down_mb_s) == (2.0, 3.0)
    finally:
        link.set(down_mb_s=1.0)


def test_delay(bed: Testbed) -> None:
    """What is dialled over a link with a delay is late by it, both ways; it can be changed; other links have none."""
    link = bed.link("aside", "far")
    assert 40.0 <= round_trip_ms(bed, "aside", "far", 7011) < 80.0
    try:
        link.set(delay_ms=5)
        assert 10.0 <= round_trip_ms(bed, "aside", "far", 7011) < 40.0
    finally:
        link.set(delay_ms=20)
    assert round_trip_ms(bed, "near", "far", 7012) < 9.0
    assert bed.endpoint("aside", "far", 7013) == bed.endpoint("aside", "far", 7013)
    with pytest.raises(ValueError, match="relay = true"):
        bed.link("near", "far").set(delay_ms=5)


def test_jitter(bed: Testbed) -> None:
    """With jitter every byte is later by another time, each way, and never sooner than the delay."""
    link = bed.link("aside", "far")
    try:
        link.set(delay_ms=5, jitter_ms=30)
        found = round_trips_ms(bed, "aside", "far", 7014)
        assert min(found) >= 10 and max(found) > min(found) + 10
    finally:
        link.set(delay_ms=20, jitter_ms=0)


def test_only_over_links(bed: Testbed) -> None:
    """Hosts without a link between them have no addresses for each other, nor a way by any other host."""
    with pytest.raises(KeyError):
        bed.address("near", "aside")
    hidden = bed.address("far", "aside")
    echo = listening(bed, "aside", ECHO.format(port=7021))
    program = f"import socket; socket.create_connection(('{hidden}', 7021), timeout=1)"
    assert bed.spawn("far", [sys.executable, "-c", program]).wait(WITHIN_S) == 0
    assert bed.spawn("near", [sys.executable, "-c", program], stderr=subprocess.DEVNULL).wait(WITHIN_S) == 1
    end(echo)


@pytest.mark.parametrize("cores", [0.3, 0.6])
def test_quota(bed: Testbed, cores: float) -> None:
    """A busy program gets its host's quota, which can be changed, and the host says that it was held back.

    Where others keep this machine busy it gets less: no less than half of what one without a quota gets beside it.
    """
    bed.host("near").set_cores(cores)
    spinning = [run(bed, host, SPIN) for host in ("near", "far")]
    try:
        time.sleep(0.3)
        began, before = time.monotonic(), [bed.usage(host) for host in ("near", "far")]
        time.sleep(2.0)
        took, after = time.monotonic() - began, [bed.usage(host) for host in ("near", "far")]
    finally:
        end(*spinning)
        bed.host("near").set_cores(0.3)
    near, far = ((now.cpu_s - then.cpu_s) / took for now, then in zip(after, before, strict=True))
    assert 0.5 * min(cores, far) <= near <= 1.2 * cores
    assert far <= 1.1 * cores or after[0].throttled_s > before[0].throttled_s
    assert after[1].throttled_s == 0.0


def test_memory(bed: Testbed) -> None:
    """A program that takes more than its host has is killed, and nobody else."""
    beside = [listening(bed, host, ECHO.format(port=7031)) for host in ("near", "far")]
    try:
        assert run(bed, "near", GREED).wait(WITHIN_S) == -9
        assert [each.poll() for each in beside] == [None, None]
        assert 80e6 < bed.usage("near").memory_peak_bytes <= 100e6
    finally:
        end(*beside)


@pytest.mark.slow
def test_disk(bed: Testbed) -> None:
    """What is read from a disk comes at the host's rate, after what the kernel lets through at first."""
    argv = ["dd", f"if={DEMO / 'model.safetensors'}", "of=/dev/null", "iflag=direct", "bs=250k", "count=20"]
    took = {}
    for host in ("aside", "far"):
        began = time.monotonic()
        assert bed.spawn(host, argv, stderr=subprocess.DEVNULL).wait(WITHIN_S) == 0
        took[host] = time.monotonic() - began
    assert took["aside"] > 0.8 and took["far"] < 0.6 * took["aside"]


def test_quota_from_ready_on(bed: Testbed, small_file: Path) -> None:
    """Until a part is ready its host has no quota, and then it has."""
    quiet = bed.usage("near").throttled_s
    bed.start("server", "family")
    try:
        assert bed.usage("near").throttled_s == quiet
        assert bed.host("near").cores == 0.3
        assert bed.part("server").runs
        with pytest.raises(ValueError, match="already running: server"):
            bed.start("server")
        spinning = run(bed, "near", SPIN)
        time.sleep(0.5)
        end(spinning)
        assert bed.usage("near").throttled_s > quiet
    finally:
        bed.stop("server", "family")


def test_stop(bed: Testbed) -> None:
    """What a part has started ends with it, though nobody told it, and even where it does not listen."""
    for name, within_s in (("family", 20.0), ("stubborn", 0.5)):
        bed.start(name)
        part = bed.part(name)
        wait_for_processes(part, 2)
        bed.stop(name, within_s=within_s)
        assert part.pids() == [] and not part.runs
        with pytest.raises(KeyError):
            bed.part(name)
        bed.stop(name)


def test_parts_that_fail(bed: Testbed) -> None:
    """A part that ends, or does not get ready, is an error with the end of its log; what stands for nothing is too."""
    with pytest.raises(PartFailed, match=r"broken on near ended with status 1(.|\n)*No module named no_such_module"):
        bed.start("broken")
    bed.start("server")
    with pytest.raises(PartFailed, match="unready on aside was not ready within 1 s"):
        bed.start("unready", within_s=1.0)
    bed.stop("server", "unready", "broken")
    with pytest.raises(BadScenario, match=r"\{address:aside\} stands for nothing on near"):
        bed.start("lost")
    with pytest.raises(KeyError):
        bed.start("nobody")


def test_processes_apart(bed: Testbed) -> None:
    """Each of a part's processes has the quota for itself, whatever the others use, and all end with the part."""
    bed.start("spinning")
    part = bed.part("spinning")
    wait_for_processes(part, 3)
    with pytest.raises(RuntimeError, match="spinning has 3 processes and not 2"):
        bed.set_apart("spinning", 0.2, 2)
    try:
        bed.set_apart("spinning", 0.2, 3)
        assert bed.host("near").cores == pytest.approx(0.6)
        pids = part.pids()
        time.sleep(0.3)
        began, before, used = time.monotonic(), bed.usage("near"), [ran_s(pid) for pid in pids]
        time.sleep(2.0)
        shares = [(ran_s(pid) - then) / (time.monotonic() - began) for pid, then in zip(pids, used, strict=True)]
        after = bed.usage("near")
        # The first only waits. Where others keep the machine busy the two get less than they may.
        assert sorted(share > 0.05 for share in shares) == [False, True, True]
        assert max(shares) <= 1.2 * 0.2
        assert after.throttled_s > before.throttled_s or max(shares) < 0.16
        assert after.cpu_s - before.cpu_s == pytest.approx(sum(shares) * 2.0, abs=0.15)
    finally:
        bed.stop("spinning", within_s=0.5)
        bed.host("near").set_cores(0.3)
    assert part.pids() == []


def ran_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def wait_for_processes(part: Program, count: int) -> None:
    """Wait until it has so many, but not for ever."""
    deadline = time.monotonic() + WITHIN_S
    while len(part.pids()) != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_inside(bed: Testbed) -> None:
    """A thread is in a namespace for one call; its errors come back, and whoever called stays where they were."""

    def where() -> str:
        return os.readlink("/proc/thread-self/ns/net")

    here = where()
    assert inside(bed.namespace("near"), where) == inside(bed.namespace("near"), where) != here
    assert where() == here
    with pytest.raises(FileNotFoundError):
        inside(f"{bed.prefix}-none", where)
    with pytest.raises(ZeroDivisionError):
        inside(bed.namespace("far"), lambda: 1 / 0)
    assert not is_ready(bed.namespace("far"), "http://127.0.0.1:9/", "")


def test_one_at_a_time(bed: Testbed, tmp_path: Path) -> None:
    """A process has one testbed, and a second one takes nothing of the first."""
    with pytest.raises(RuntimeError, match="one at a time"), Testbed(bed.scenario, tmp_path):
        pass
    assert bed.spawn("near", ["true"]).wait(WITHIN_S) == 0
