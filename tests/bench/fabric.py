"""The fabric beside gloo, over loopback and on emulated local networks: how long each operation takes.

    PYTHONPATH=tests python -m bench.fabric [--quick] [--congestion cubic]

Every member is a process of its own; both ways of doing an operation take turns, so that the machine's moods are the
same for both. Shown are medians with quartiles, of the member that took longest, and where the network is emulated
what share of its bandwidth was used: of the least time that the busiest port needs for what must pass it.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.fabric_member import COLUMNS, ROWS, uneven
from bench.page import machine, table
from bench.testbed import scenario as scenarios
from bench.testbed.bed import Testbed
from bench.testbed.possible import obstacle
from bench.testbed.processes import environment
from bench.testbed.scenario import load

from peers.tiles import evenly

SCENARIOS = Path(str(scenarios.__file__)).parent / "scenarios"
PORT = 8002
MBIT = 0.125
WITHIN_S = 900.0


def least_s(operation: str, size: int, mb_s: float) -> float:
    """The least time for what must pass the busiest port; 0 where that is not what bounds it."""
    row = COLUMNS * 4 / (mb_s * 1e6)
    shares = uneven(size) if "uneven" in operation else evenly(ROWS, size)
    if operation.startswith(("all-gather", "reduce-scatter")) and "819" in operation:
        return row * max(ROWS - rows for rows in shares)
    if operation.startswith("all-reduce, 819"):
        return row * 2 * max(ROWS - rows for rows in shares)
    if operation == "there and back, 1 MB":
        return 2 * 2**20 / (mb_s * 1e6)
    return 0.0


def shown(lines: Sequence[str], size: int, mb_s: float) -> list[list[str]]:
    """Rows of the table, of what the first member has printed."""
    rows = []
    for line in lines:
        said = json.loads(line)
        least = least_s(said["operation"], size, mb_s) if mb_s else 0.0
        for way, times in said["times"].items():
            low, middle, high = statistics.quantiles(times, n=4)
            used = f"{least / middle:.0%}" if least else ""
            rows.append([said["operation"], way, f"{middle * 1e3:.2f}", f"{low * 1e3:.2f}–{high * 1e3:.2f}", used])
    return rows


def run(size: int, start: Callable[[int, Sequence[str]], subprocess.Popen[str]], options: Sequence[str]) -> list[str]:
    """What the first member prints."""
    words = [sys.executable, "-m", "bench.fabric_member"]
    processes = [start(rank, [*words, str(rank), str(size), *options]) for rank in range(size)]
    try:
        output, _ = processes[0].communicate(timeout=WITHIN_S)
        if processes[0].returncode:
            raise SystemExit("the group has failed")
        return output.splitlines()
    finally:
        for process in processes:
            process.kill()


def on_loopback(size: int, rounds: int, congestion: str) -> list[list[str]]:
    """All members on this machine's loopback."""
    more = environment({"SECRET": secrets.token_urlsafe()})

    def start(rank: int, words: Sequence[str]) -> subprocess.Popen[str]:
        output: Any = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        return subprocess.Popen(words, env=more, stdout=output, text=True)

    return shown(run(size, start, [f"127.0.0.1:{PORT}", str(rounds), congestion]), size, 0.0)


def on_lan(size: int, mbit_s: float, rounds: int, congestion: str) -> list[list[str]]:
    """Each member on a host of its own."""
    more = environment({"SECRET": secrets.token_urlsafe()})
    given = {"cores": "0", "mb_s": str(mbit_s * MBIT)}
    with TemporaryDirectory() as folder, Testbed(load(SCENARIOS / f"lan_{size}.toml", given), Path(folder)) as bed:

        def start(rank: int, words: Sequence[str]) -> subprocess.Popen[str]:
            output: Any = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            return bed.spawn(f"device-{rank + 1}", words, env=more, stdout=output, text=True)

        where = f"{bed.port('device-1').address}:{PORT}"
        return shown(run(size, start, [where, str(rounds), congestion]), size, mbit_s * MBIT)


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer members, bandwidths and rounds")
    parser.add_argument("--congestion", default="", help="TCP's congestion control in ours, instead of the machine's")
    parser.add_argument("--sizes", type=int, nargs="*", default=None)
    arguments = parser.parse_args()
    sizes = arguments.sizes or ([2, 4] if arguments.quick else [2, 4, 6])
    rounds = 10 if arguments.quick else 40
    columns = ["operation", "way", "ms", "quartiles", "of the bandwidth"]
    print(f"Measured on {machine()}, medians of {rounds}; load before: {os.getloadavg()[0]:.1f}.", flush=True)
    for size in sizes:
        print(
            f"\n{size} members, loopback\n\n{table(columns, on_loopback(size, rounds, arguments.congestion))}",
            flush=True,
        )
    if obstacle():
        raise SystemExit(f"no emulated networks here: {obstacle()}")
    for size in sizes:
        for mbit_s in (125,) if arguments.quick else (125, 500):
            made = table(columns, on_lan(size, mbit_s, rounds, arguments.congestion))
            print(f"\n{size} members, {mbit_s} Mb/s each way at each port\n\n{made}", flush=True)


if __name__ == "__main__":
    main()
