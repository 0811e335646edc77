"""A load on one device of three at a known moment (Galaxy+, Fig. 16): throughput over time, when it is noticed, and how
fast the group is without that device, and with it again.

Members are the product's own processes, the model is a small one with random weights, on two larger devices and one
smaller one. The load is further processes under the quota of the second device.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.edge.groups import SCENARIO, TERMINAL, tell
from bench.edge.job import PORT, SECRET
from bench.page import machine, table
from bench.random_llama import Shape, write_checkpoint
from bench.testbed.bed import Testbed
from bench.testbed.processes import environment
from bench.testbed.scenario import load

FILE = "straggler.json"
SHAPE = Shape(layers=4, positions=512)
QUOTAS = {"device-1": 0.4, "device-2": 0.4, "device-3": 0.22}
SLOW = "device-2"
LOADS = 3
MB_S = "40"
QUIET_S, LOADED_S, AFTER_S = 25.0, 45.0, 50.0

Series = list[dict[str, Any]]


def measure(folder: Path) -> dict[str, Any]:
    """One run: quiet, loaded, quiet again."""
    model = folder / "straggler-model"
    if not (model / "config.json").is_file():
        write_checkpoint(SHAPE, model)
    with Testbed(load(SCENARIO, {"mb_s": MB_S, "packet": "16000"}), folder / "logs") as bed:
        where, key = bed.port(TERMINAL).address, environment({"TRILBY_GROUP_KEY": SECRET})
        log = (folder / "logs" / "straggler.log").open("ab")
        lasts = f"{QUIET_S + LOADED_S + AFTER_S:g}"
        words = ["bench.edge.straggler_portal", where, str(model), ",".join(QUOTAS), lasts]
        popen: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
        portal = bed.spawn(TERMINAL, [sys.executable, "-m", *words], env=key, **popen)
        member = [sys.executable, "-m", "device_agent.group.member", "--model", str(model), "--threads", "1"]
        loads = []
        for name, cores in QUOTAS.items():
            bed.host(name).set_cores(cores)  # They measure themselves under it.
            more = ["--join", f"{where}:{PORT}", "--name", name]
            bed.spawn(name, [*member, *more], env=key, stdout=log, stderr=log)
        for _ in range(LOADS):
            words = [sys.executable, "-m", "bench.edge.burn"]
            loads.append(bed.spawn(SLOW, words, env=key, stdin=subprocess.PIPE, text=True))
        assert portal.stdout is not None
        series: Series = [json.loads(portal.stdout.readline())]
        began, sent = time.monotonic(), ["burn", "rest"]
        due = [began + QUIET_S, began + QUIET_S + LOADED_S]
        for line in portal.stdout:
            series.append(json.loads(line))
            while sent and time.monotonic() >= due[-len(sent)]:
                due[-len(sent)] = time.monotonic()
                for each in loads:
                    tell(each, sent[0])
                sent.pop(0)
    for one in series:
        one["at"] -= began
        one["noticed"] = {name: at - began for name, at in one["noticed"].items()}
    return {"machine": machine(), "series": series[1:], "loaded": due[0] - began, "free": due[1] - began}


def write(folder: Path) -> None:
    """Measure, unless a folder of records has it."""
    file = folder / FILE
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(measure(folder)), encoding="utf-8")


def shown(found: Mapping[str, Any]) -> str:
    """Texts a second by phase, and what the portal said of the slow device."""
    if not found:
        return table(["phase", "texts a second"], [["not measured", "–"]])
    series, loaded, free = found["series"], found["loaded"], found["free"]
    noticed = _noticed(series, loaded)
    back = first(series, free, lambda one: one[SLOW] == "working")
    phases = [
        ("before the load", 0.0, loaded),
        ("under it, until it is noticed", loaded, loaded + noticed if noticed is not None else free),
        ("under it, once planned anew", loaded + noticed + 5.0 if noticed is not None else free, free),
        ("behind it, the last half", (free + series[-1]["at"]) / 2, series[-1]["at"]),
    ]
    rows = [[name, _rate(series, begin, end)] for name, begin, end in phases]
    rows.append(["noticed after", "never" if noticed is None else f"{noticed:.1f} s"])
    rows.append(["back after the load's end", "–" if noticed is None or back is None else f"{back:.1f} s"])
    rows.append(["wrong outputs", f"{wrong(series)}"])
    return table(["phase", "texts a second"], rows)


def first(series: Sequence[Mapping[str, Any]], since: float, such: Any) -> float | None:
    """Seconds from then until an entry is such."""
    return next((one["at"] - since for one in series if one["at"] >= since and such(one)), None)


def _noticed(series: Sequence[Mapping[str, Any]], since: float) -> float | None:
    """Seconds from then until the portal has said that the device is slow."""
    times = [at for one in series if (at := one.get("noticed", {}).get(SLOW, 0.0)) >= since]
    if times:
        return float(min(times)) - since
    return first(series, since, lambda one: one[SLOW] != "working")


def wrong(series: Sequence[Mapping[str, Any]]) -> int:
    """Outputs that are not those of the first text; sums are added in other orders by other plans."""
    return sum(abs(one["check"] / series[0]["check"] - 1) > 1e-4 for one in series)


def _rate(series: Sequence[Mapping[str, Any]], begin: float, end: float) -> str:
    taken = [one["s"] for one in series if begin <= one["at"] - one["s"] and one["at"] <= end]
    return f"{1 / statistics.median(taken):.2f}" if taken else "–"
