"""Everything at once for long: memory and open files stay as they were, and nothing is wrong.

    make test-soak [ARGS="--minutes 30 --publish"]

Two gateways with a redis, a device with two clouds behind a network that is cut now and then, and a group of three.
Clients chat, go on with conversations, draw by seeds, ask for forms, vectors and scores, ask nonsense, hang up and use
the token websocket; meanwhile the second cloud is killed again and again, and redis stands still. Each process's memory
is a straight line through the second half of its samples; one that was killed is not measured.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from faults.household import household
from faults.page import write
from faults.records import HERE, SOAK, append, commit
from faults.soak_clients import KINDS, NEAR, know_answers
from faults.split import SETTINGS, Split, split_site
from forked import ForkedProcess
from processes import free_port
from redis_here import RedisServer
from tqdm import tqdm

CLIENTS: Final = 4
FAULT_EVERY_S: Final = 10.0
SAMPLE_S: Final = 1.0
WARM: Final = 0.1
MOST_WHY: Final = 400
"""Characters of what was wrong."""
QUIET_S: Final = 5.0
"""After the last client, until files are counted."""
MOST_MB_MIN: Final = 0.5
MORE_FILES: Final = 16
LONG_MINUTES: Final = 20.0
"""A shorter soak says how memory grew, and is no reason to fail: caches are still filling."""
SECRETS: Final = {"TRILBY_GATEWAY_TOKEN": "what-gateways-share"}
PAGES_MB: Final = "128"
KERNELS: Final = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
"""Pages take memory when they are first used, and oneDNN keeps a kernel for each number of rows, the last 1024 of them:
both are bounded and fill for hours. They are small here, so that what grows besides can be seen."""


@dataclass
class Seen:
    """What was seen: how often each kind was done, what was wrong, and of each process memory by time, and files."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    files: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class Bed:
    """The processes. ``bases``: where clients ask, and whether the device is connected there; ``pids``: of those whose
    memory is watched; ``faults``: what breaks by turns."""

    bases: list[tuple[str, bool]]
    pids: dict[str, int]
    faults: list[tuple[str, Callable[[], None]]]


@contextmanager
def bed(folder: Path) -> Iterator[Bed]:
    """All of it, ready."""
    with RedisServer() as redis, ExitStack() as stack:
        secrets = {**SECRETS, "TRILBY_REDIS": redis.url}
        more: dict[str, Any] = {"cloud_environment": KERNELS, "device_environment": KERNELS}
        more["cloud_settings"] = (*SETTINGS["cloud_settings"], "--kv-mb", PAGES_MB)
        split = stack.enter_context(split_site(folder, gateway_environment=secrets, **more))
        port = free_port()
        words = ("--port", str(port), "--log-form", "json")
        second = stack.enter_context(
            ForkedProcess("gateway", *words, log=folder / "two.log", port=port, environment=secrets)
        )
        (folder / "group").mkdir()
        house = stack.enter_context(household("galaxy", folder / "group"))
        server = redis._process
        assert second.process is not None and server is not None
        pids = {name: pid for name, pid in split.pids().items() if name != "standby"}
        pids |= {f"group's {name}": pid for name, pid in house.pids().items()}
        pids |= {"second gateway": second.process.pid, "redis": server.pid}

        def still() -> None:
            server.send_signal(signal.SIGSTOP)
            time.sleep(2.0)
            server.send_signal(signal.SIGCONT)

        faults = [("connection cut", split.way.cut), ("cloud killed", lambda: _restart(split)), ("redis still", still)]
        bases = [(split.base, True), (f"http://127.0.0.1:{port}/v1", False), (house.base, True)]
        yield Bed(bases, pids, faults)


def _restart(split: Split) -> None:
    split.kill("standby")
    split.revive()


def client(number: int, found: Bed, until: float, seen: Seen, lock: threading.Lock) -> None:
    """One client, to its end."""
    rng = random.Random(f"soak/{number}")
    while time.monotonic() < until:
        base, near = rng.choice(found.bases)
        kind = rng.choice([each for each in KINDS if near or each not in NEAR])
        why = ""
        try:
            KINDS[kind](base, rng)
        except Exception as error:  # Whatever is wrong is told in the end.
            why = f"{kind}: {type(error).__name__}: {error}"[:MOST_WHY]
        with lock:
            seen.counts[kind] += 1
            if why:
                seen.wrong.append(why)


def breaking(found: Bed, until: float, seen: Seen) -> None:
    """One fault after another; one that cannot be done is wrong, and ends none of the others."""
    for name, do in itertools.cycle(found.faults):
        time.sleep(FAULT_EVERY_S)
        if time.monotonic() > until - FAULT_EVERY_S:
            return
        try:
            do()
            seen.counts[name] += 1
        except Exception as error:
            seen.wrong.append(f"{name}: {type(error).__name__}: {error}"[:MOST_WHY])


def sample(found: Bed, seen: Seen) -> None:
    """Each process's memory in MB and its open files, now. None of them is meant to end: one that has is wrong, and not
    looked at any more."""
    for name, pid in list(found.pids.items()):
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                raise psutil.ZombieProcess(pid)
            held, files = process.memory_info().rss / 1e6, process.num_fds()
        except psutil.NoSuchProcess:
            del found.pids[name]
            seen.wrong.append(f"{name} has ended")
            continue
        seen.memory.setdefault(name, []).append((time.monotonic(), held))
        seen.files.setdefault(name, []).append(files)


def run(found: Bed, minutes: float) -> Seen:
    """All clients for so long."""
    know_answers()  # By one thread, before many ask.
    seen, lock, until = Seen(), threading.Lock(), time.monotonic() + 60 * minutes
    threads = [threading.Thread(target=client, args=(number, found, until, seen, lock)) for number in range(CLIENTS)]
    threads.append(threading.Thread(target=breaking, args=(found, until, seen)))
    for each in threads:
        each.start()
    with tqdm(total=round(60 * minutes), desc="seconds", unit="") as bar:
        while any(each.is_alive() for each in threads):
            sample(found, seen)
            time.sleep(SAMPLE_S)
            bar.update(min(1, bar.total - bar.n))
            bar.set_postfix(asked=sum(seen.counts.values()), wrong=len(seen.wrong))
    time.sleep(QUIET_S)
    sample(found, seen)
    return seen


def record_of(seen: Seen, minutes: float) -> dict[str, Any]:
    """For the table."""
    processes, why = {}, list(seen.wrong[:5])
    for name, samples in seen.memory.items():
        second = samples[len(samples) // 2 :]
        if len(second) < 2:  # It has ended at once, which is told already.
            continue
        slope = statistics.linear_regression([at for at, _ in second], [held for _, held in second]).slope * 60
        files = seen.files[name]
        first, last = files[int(WARM * len(files))], files[-1]
        level = statistics.mean(held for _, held in second)
        processes[name] = {"slope_mb": slope, "level_mb": level, "files": [first, last]}
        if minutes >= LONG_MINUTES and slope > MOST_MB_MIN:
            why.append(f"{name} grows by {slope:.2f} MB a minute")
        if last - first > MORE_FILES:
            why.append(f"{name} has {last - first} files more open")
    counts = dict(sorted(seen.counts.items()))
    about = {"kind": SOAK, "minutes": minutes, "commit": commit(), "counts": {**counts, "wrong": len(seen.wrong)}}
    return {**about, "processes": processes, "why": "; ".join(why)}


def main() -> None:
    """Soak; exit status 1 where something is wrong or grows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--publish", action="store_true", help="put records and page into docs/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, bed(Path(folder)) as found:
        record = record_of(run(found, options.minutes), options.minutes)
    append(HERE, record)
    for name, of in record["processes"].items():
        print(f"{name}: {of['level_mb']:.0f} MB, {of['slope_mb']:+.2f} MB a minute, files {of['files']}")
    print(record["counts"], record["why"])
    print(f"The table is in {write(options.publish)}.")
    raise SystemExit(bool(record["why"]))


if __name__ == "__main__":
    main()
