"""A session where one plan of a group follows another: what was read is handed over, or read again (replayed).

Three devices share a small model, one leaves, a session reads a text on the two others, and the third comes back: how
long the next token takes, beside what the portal had expected of either way. Members are the product's own processes.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bench.edge.groups import DEVICES, SCENARIO, TERMINAL
from bench.edge.job import PORT
from bench.edge.series import KEY
from bench.edge.tables import NOTHING
from bench.page import machine, table
from bench.random_llama import Shape, write_checkpoint
from bench.testbed.bed import Testbed
from bench.testbed.scenario import load

FILE = "handing.json"
SHAPE = Shape(hidden=512, layers=8, intermediate=1536, heads=8, kv_heads=2, positions=4096)
MODES, POSITIONS = ("edgeformer", "galaxy"), (512, 2048)
HANDED, REPLAYED = WAYS = ("handed over", "replayed")
CORES, MB_S = 0.36, 27.0
"""As where links and devices change, at 400 Mb/s."""

USED, GUEST = DEVICES[:3], DEVICES[2]
ABOUT_S = 45.0 * len(MODES) * len(POSITIONS) * len(WAYS)


def measure(folder: Path, mode: str, positions: int, way: str) -> dict[str, Any]:
    """One run."""
    model = folder / "handing-model"
    if not (model / "config.json").is_file():
        write_checkpoint(SHAPE, model)
    with (
        Testbed(load(SCENARIO, {"mb_s": f"{MB_S:g}", "packet": "16000"}), folder / "logs") as bed,
        (folder / "logs" / "handing.log").open("ab") as log,
    ):
        where = bed.port(TERMINAL).address
        words = ["bench.edge.handing_portal", mode, where, str(model), ",".join(USED), f"{positions}", way]
        popen: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
        portal = bed.spawn(TERMINAL, [sys.executable, "-m", *words], env=KEY, **popen)

        def come(name: str) -> subprocess.Popen[str]:
            member = [sys.executable, "-m", "device_agent.group.member", "--model", str(model), "--threads", "1"]
            more = ["--join", f"{where}:{PORT}", "--name", name]
            spawned: subprocess.Popen[str] = bed.spawn(name, [*member, *more], env=KEY, stdout=log, stderr=log)
            return spawned

        for name in USED:
            bed.host(name).set_cores(CORES)  # They measure themselves under it.
        guest = [come(name) for name in USED][USED.index(GUEST)]
        assert portal.stdout is not None
        for line in portal.stdout:
            told = json.loads(line)
            if told == "formed":
                guest.send_signal(signal.SIGTERM)
            elif told == "read":
                come(GUEST)
            else:
                return {"mode": mode, "positions": positions, "way": way, **told}
    raise RuntimeError(f"the portal ended early: see {log.name}")


def write(folder: Path, quick: bool) -> None:
    """Measure what a folder of records does not have yet; quick: nothing."""
    file = folder / FILE
    found: list[dict[str, Any]] = json.loads(file.read_text())["runs"] if file.is_file() else []
    known = {(each["mode"], each["positions"], each["way"]) for each in found}
    for of in product(MODES, POSITIONS, WAYS) if not quick else ():
        if of not in known:
            found.append(measure(folder, *of))
            print(f"{of}: {pause_s(found[-1]):.2f} s until the next token", flush=True)
            file.write_text(json.dumps({"machine": machine(), "runs": found}), encoding="utf-8")


def pause_s(run: Mapping[str, Any]) -> float:
    """The longest step of a run."""
    return float(max(each["s"] for each in run["steps"]))


def shown(found: Mapping[str, Any]) -> str:
    """Both ways side by side."""
    rows = list(_rows(found.get("runs", ())))
    ways = (f"{way}: until the next token, s (expected of it alone)" for way in WAYS)
    head = ["mode", "positions read", "usual step, ms", *ways]
    return table([*head, "wrong outputs"], rows) if rows else NOTHING


def _rows(runs: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    by = {(each["mode"], each["positions"], each["way"]): each for each in runs}
    for mode, positions in product(MODES, POSITIONS):
        pair = [by.get((mode, positions, way)) for way in WAYS]
        if None in pair:
            continue
        both = [each for each in pair if each is not None]
        usual = statistics.median(step["s"] for each in both for step in each["steps"])
        times = [f"{pause_s(each):.2f} ({each['expected_s'][way]:.2f})" for each, way in zip(both, WAYS, strict=True)]
        checks = zip(*([step["check"] for step in each["steps"]] for each in both), strict=False)
        wrong = sum(abs(one / other - 1) > 1e-4 for one, other in checks)
        yield [mode, f"{positions}", f"{usual * 1e3:.0f}", *times, f"{wrong}"]
