"""Wrong bytes by the million against everything that listens, in real processes: each serves on, and stays as it was.

    make test-frames [ARGS="--count 1000000 --publish"]
    make test-frames ARGS="--listener cloud --batch 17"        one connection again

Gateway (its API over HTTP, ``/device``, ``/v1/stream``), cloud, the rendezvous of a group and of a cloud's stages (by
strangers and by those who know the secret, whose words go onto the board), and the links between members. Between
batches a normal request is served; memory is looked at behind the first tenth and at the end, open files
before and, once sockets that were dropped are gone, behind all.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from checkpoints import DEMO
from faults.listeners import (
    TOKENS,
    TURNS,
    FabricDoor,
    FabricLinks,
    Http,
    Listener,
    Rendezvous,
    TokenSocket,
    cloud_door,
    gateway_door,
)
from faults.page import write
from faults.records import FRAMES, HERE, append, commit
from faults.shapes import wanted
from forked import ForkedProcess
from installation import Installation, wait_until
from processes import ROOT, Process, free_port
from tqdm import tqdm

CHECK_EVERY: Final = 200
"""Batches between two normal requests."""
WARM: Final = 0.1
"""Of the frames, behind which memory and files are looked at first."""
MORE_MB: Final = 48.0
MORE_FILES: Final = 16
"""By how much a process may have grown in the end: what it keeps for connections that are on their way out."""
GOODBYE_S: Final = 40.0
SECRET: Final = "a secret of these listeners"


@dataclass(frozen=True)
class Target:
    """A listener, the process whose it is (None: this one), and its share of all frames."""

    listener: Listener
    process: Process | None
    share: float


@contextmanager
def targets(folder: Path) -> Iterator[dict[str, Target]]:
    """All that listen, with their processes."""
    with ExitStack() as stack:
        site = stack.enter_context(Installation(folder, forked=True, device_settings=("--threads", "1")))
        joined, staged, port = free_port(), free_port(), free_port()
        more = ("--model", str(DEMO), "--threads", "1")
        group = ("--mode", "pipeline", "--devices", "3", "--shares", "even", "--group-listen", f"127.0.0.1:{joined}")
        portal = ForkedProcess(
            "device_agent", *more, *group, "--gateway", f"ws://127.0.0.1:{free_port()}", log=folder / "portal.log",
            environment={"TRILBY_GROUP_KEY": SECRET},
        )  # fmt: skip
        stages = ("--split", "2", "--port", str(port), "--stages", "2", "--remote-stages", "1")
        leader = ForkedProcess(
            "cloud_server", *more, *stages, "--stage-address", f"127.0.0.1:{staged}", log=folder / "leader.log",
            port=port, environment={"TRILBY_STAGE_TOKEN": SECRET},
        )  # fmt: skip
        for process in (portal, leader):
            process.start()
            stack.callback(process.end)
        stranger, member = Rendezvous(joined, SECRET), Rendezvous(joined, SECRET, inside=True)
        stage = Rendezvous(staged, SECRET)
        for each in (stranger, stage):
            wait_until(lambda each=each: _listens(each))  # type: ignore[misc]
        yield {
            "http": Target(Http(site.gateway_port, site.base), site.gateway, 0.2),
            "agents": Target(gateway_door(site.gateway_port, site.base), site.gateway, 0.2),
            "stream": Target(TokenSocket(site.gateway_port, site.base), site.gateway, 0.15),
            "cloud": Target(cloud_door(site.cloud_port, site.base), site.cloud, 0.25),
            "rendezvous": Target(stranger, portal, 0.06),
            "board": Target(member, portal, 0.05),
            "stages": Target(stage, leader, 0.05),
            "link doors": Target(FabricDoor(), None, 0.02),
            "links": Target(FabricLinks(), None, 0.02),
        }
        check_stages(staged, port, folder)


def check_stages(staged: int, port: int, folder: Path) -> None:
    """After all that a real stage comes in, and the cloud serves."""
    words = ("--join", f"127.0.0.1:{staged}", "--model", str(DEMO), "--threads", "1")
    stage = ForkedProcess(
        "cloud_server.stages.stage", *words, log=folder / "stage.log", environment={"TRILBY_STAGE_TOKEN": SECRET}
    )
    try:
        stage.start()
        wait_until(lambda: _healthy(port))
    finally:
        stage.end()


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=10, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _listens(rendezvous: Rendezvous) -> bool:
    try:
        rendezvous.check()
    except Exception:
        return False
    return True


def attack(name: str, target: Target, count: int, seed: int, progress: Callable[[int], object]) -> dict[str, Any]:
    """So many frames against one listener; its record."""
    began, sent, batch, normal, why = time.monotonic(), 0, 0, 0, ""
    before: tuple[float, int] | None = None
    files = held(target.process)[1]
    try:
        target.listener.check()
        while sent < count:
            done = target.listener.attack(random.Random(f"{seed}/{name}/{batch}"))
            sent, batch = sent + done, batch + 1
            progress(done)
            if before is None and sent >= WARM * count:
                before = held(target.process)
            if batch % CHECK_EVERY == 0:
                target.listener.check()
                normal += 1
        target.listener.check()
    except (AssertionError, OSError) as error:
        why = f"batch {batch}: {type(error).__name__}: {error}"[:500]
    after = settled(target.process, files)
    before = before or after
    if not why and after[0] - before[0] > MORE_MB:
        why = f"it grew by {after[0] - before[0]:.0f} MB"
    if not why and after[1] - files > MORE_FILES:
        why = f"{after[1] - files} files more are open"
    mistakes = 0 if target.process is None else tracebacks(target.process.output)
    if not why and mistakes:
        why = f"{mistakes} tracebacks of ours in its log"
    return {
        "kind": FRAMES, "listener": name, "frames": sent, "batches": batch, "normal": normal + 2, "seed": seed,
        "memory_mb": [round(before[0], 1), round(after[0], 1)], "files": [files, after[1]],
        "seconds": round(time.monotonic() - began, 1), "why": why, "commit": commit(),
    }  # fmt: skip


def tracebacks(output: str) -> int:
    """How many in a log go through the product's own code; those of its libraries alone are said now and then."""
    own, libraries = f'File "{ROOT}/', f'File "{ROOT}/.venv/'
    found = output.split("Traceback")[1:]
    return sum(each.count(own) > each.count(libraries) for each in found)


def settled(process: Process | None, files: int) -> tuple[float, int]:
    """What it holds once sockets that it has dropped are gone, or after a while: they say goodbye for some seconds."""
    until = time.monotonic() + GOODBYE_S
    while held(process)[1] > files + MORE_FILES and time.monotonic() < until:
        time.sleep(0.5)
    return held(process)


def held(process: Process | None) -> tuple[float, int]:
    """Resident memory of a process in MB, and how many files it has open."""
    if process is None:
        seen = psutil.Process()
    else:
        assert process.process is not None
        seen = psutil.Process(process.process.pid)
    return seen.memory_info().rss / 1e6, seen.num_fds()


def run(count: int, seed: int, only: str = "") -> list[dict[str, Any]]:
    """All listeners at once, or one; their records."""
    wanted(TURNS, TOKENS)  # Loaded by one thread, asked by all.
    with tempfile.TemporaryDirectory() as folder, targets(Path(folder)) as found:
        chosen: Mapping[str, Target] = {name: each for name, each in found.items() if only in ("", name)}
        with tqdm(total=count, desc="frames", unit="") as bar, ThreadPoolExecutor(len(chosen)) as pool:
            whole = sum(each.share for each in chosen.values())
            work = [
                pool.submit(attack, name, each, max(1, round(count * each.share / whole)), seed, bar.update)
                for name, each in chosen.items()
            ]
            return [each.result() for each in work]


def again(name: str, batch: int, seed: int) -> None:
    """One connection again. Raises AssertionError as it did."""
    with tempfile.TemporaryDirectory() as folder, targets(Path(folder)) as found:
        found[name].listener.attack(random.Random(f"{seed}/{name}/{batch}"))
        found[name].listener.check()


def main() -> None:
    """Attack; exit status 1 where one listener does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10**6, help="frames, of all listeners together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--listener", default="", help="one alone")
    parser.add_argument("--batch", type=int, help="one connection of --listener again")
    parser.add_argument("--publish", action="store_true", help="put records and page into docs/results")
    options = parser.parse_args()
    if options.batch is not None:
        again(options.listener, options.batch, options.seed)
        return
    records = run(options.count, options.seed, options.listener)
    for each in records:
        append(HERE, each)
        said = f"{each['listener']}: {each['frames']} frames, {each['seconds']:.0f} s {each['why']}"
        print(said.rstrip())
    print(f"The table is in {write(options.publish)}.")
    raise SystemExit(any(each["why"] for each in records))


if __name__ == "__main__":
    main()
