"""A load on one device of three at a known moment (Galaxy+, Fig. 16): throughput over time, when it is noticed, and how
fast the group is without that device, and with it again.

Members are the product's own processes, the model is a small one with random weights, on two larger devices and one
smaller one. The load is further processes under the quota of the second device.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.edge import series as runs
from bench.edge.groups import tell
from bench.edge.series import Changes, usual_s, wrong
from bench.page import table
from bench.testbed.bed import Testbed

FILE = "straggler.json"
QUOTAS = {"device-1": 0.4, "device-2": 0.4, "device-3": 0.22}
SLOW = "device-2"
LOADS = 3
MB_S = 40.0
QUIET_S, LOADED_S, AFTER_S = 25.0, 45.0, 50.0


def measure(folder: Path) -> dict[str, Any]:
    """One run: quiet, loaded, quiet again."""
    found = runs.measure(folder, "galaxy", QUOTAS, MB_S, QUIET_S + LOADED_S + AFTER_S, _loads)
    loaded, free = found.pop("made")
    return found | {"loaded": loaded, "free": free}


def _loads(bed: Testbed) -> Changes:
    """Further processes under the quota of the slow device."""
    words = [sys.executable, "-m", "bench.edge.burn"]
    loads = [bed.spawn(SLOW, words, env=runs.KEY, stdin=subprocess.PIPE, text=True) for _ in range(LOADS)]

    def all_of_them(what: str) -> None:
        for each in loads:
            tell(each, what)

    return [(QUIET_S, lambda: all_of_them("burn")), (QUIET_S + LOADED_S, lambda: all_of_them("rest"))]


def write(folder: Path, quick: bool) -> None:
    """Measure, unless a folder of records has it; quick: nothing."""
    file = folder / FILE
    if not quick and not file.is_file():
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


def _rate(series: Sequence[Mapping[str, Any]], begin: float, end: float) -> str:
    taken = usual_s(series, begin, end)
    return f"{1 / taken:.2f}" if taken else "–"
