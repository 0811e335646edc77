"""Links and devices that change while a group reads one text after another (EdgeFormer, Fig. 7 and 8)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.edge.groups import DEVICES, TERMINAL
from bench.edge.series import Changes, measure, usual_s, wrong
from bench.edge.tables import NOTHING
from bench.page import table
from bench.testbed.bed import Testbed

FILE = "varied.json"
CORES, STRONGER, WEAKER = 0.36, 0.36 * 20 / 13, 0.36 * 7 / 13
"""The paper's 13, 20 and 7 TFLOPS."""

MB_S = 27.0 / 400
"""Of a Mb/s: at 400 three devices' all-reduces take about a third of what one device computes."""

PHASE_S, SETTLED = 24.0, 0.5
"""Of each phase, in which the members may come to another plan; its last part counts."""


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        mbits: of all ports, by phase.
        cores: of some devices, from the second phase on.
    """

    mbits: tuple[float, ...]
    cores: Mapping[str, float] = field(default_factory=dict)

    def changes(self, bed: Testbed) -> Changes:
        """Behind the first phase."""

        def change(mbit: float) -> None:
            for name in (TERMINAL, *DEVICES):
                bed.port(name).set(mbit * MB_S, mbit * MB_S)
            for name, cores in self.cores.items():
                bed.host(name).set_cores(cores)

        return [(number * PHASE_S, partial(change, mbit)) for number, mbit in enumerate(self.mbits[1:], 1)]


CASES = {
    "bandwidth up, 200, 400, 600 Mb/s": Case((200, 400, 600)),
    "bandwidth down, 600, 400, 200 Mb/s": Case((600, 400, 200)),
    "bandwidth unstable, 400, 600, 200 Mb/s": Case((400, 600, 200)),
    "device 1 upgraded": Case((400, 400), {"device-1": STRONGER}),
    "device 1 downgraded": Case((400, 400), {"device-1": WEAKER}),
    "device 1 upgraded, device 2 downgraded": Case((400, 400), {"device-1": STRONGER, "device-2": WEAKER}),
}
USED = DEVICES[:3]
FORMED_S = 25.0
ALL_S = sum(FORMED_S + PHASE_S * len(case.mbits) for case in CASES.values())
"""Seconds of all of them, about."""


def write(folder: Path, quick: bool) -> None:
    """Measure what a folder of records does not have yet; quick: nothing."""
    file = folder / FILE
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["varied"] if file.is_file() else {}
    for name, case in CASES.items():
        if name not in found and not quick:
            lasts_s = PHASE_S * len(case.mbits)
            run = measure(folder, "edgeformer", dict.fromkeys(USED, CORES), case.mbits[0] * MB_S, lasts_s, case.changes)
            found[name] = phases(run, lasts_s)
            print(f"{name}: {found[name]}", flush=True)
            file.write_text(json.dumps({"machine": run["machine"], "varied": found}), encoding="utf-8")


def phases(run: Mapping[str, Any], lasts_s: float) -> dict[str, Any]:
    """Seconds of a text in the last part of each phase, and outputs that were wrong."""
    ends = [0.0, *run["made"], lasts_s]
    texts = [usual_s(run["series"], end - SETTLED * (end - begin), end) for begin, end in pairwise(ends)]
    return {"texts_s": texts, "wrong": wrong(run["series"])}


def shown(found: Mapping[str, Any]) -> str:
    """Each case."""
    rows = []
    for name, each in found.get("varied", {}).items():
        times = [f"{1e3 * taken:.0f}" if taken else "–" for taken in each["texts_s"]]
        rows.append([name, " → ".join(times), f"{each['wrong']}"])
    return table(["while it runs", "ms a text, by phase", "wrong outputs"], rows) if rows else NOTHING
