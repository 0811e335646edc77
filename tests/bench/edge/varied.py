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

CORES, STRONGER, WEAKER = 0.36, 0.36 * 20 / 13, 0.36 * 7 / 13
"""The paper's 13, 20 and 7 TFLOPS."""

MB_S = 27.0 / 400
"""Of a Mb/s: at 400 three devices' all-reduces take about a third of what one device computes."""

PHASE_S, SETTLED = 24.0, 0.5
"""Of each phase, in which the members may come to another plan; its last part counts."""


USED = DEVICES[:3]
FORMED_S = 25.0
"""A group's start, about."""


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        title: what changes.
        mbits: of all ports, by phase.
        cores: of some devices, from the second phase on.
    """

    title: str
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

    @property
    def lasts_s(self) -> float:
        """From its first text on."""
        return PHASE_S * len(self.mbits)

    @property
    def seconds(self) -> float:
        """All of it, about."""
        return FORMED_S + self.lasts_s


CASES = {
    "varied-up": Case("bandwidth up, 200, 400, 600 Mb/s", (200, 400, 600)),
    "varied-down": Case("bandwidth down, 600, 400, 200 Mb/s", (600, 400, 200)),
    "varied-unstable": Case("bandwidth unstable, 400, 600, 200 Mb/s", (400, 600, 200)),
    "varied-upgraded": Case("device 1 upgraded", (400, 400), {"device-1": STRONGER}),
    "varied-downgraded": Case("device 1 downgraded", (400, 400), {"device-1": WEAKER}),
    "varied-both": Case(
        "device 1 upgraded, device 2 downgraded", (400, 400), {"device-1": STRONGER, "device-2": WEAKER}
    ),
}
"""By the name of its record."""


def write(name: str, folder: Path, quick: bool) -> None:
    """Measure a case that a folder of records does not have yet; quick: nothing."""
    file, case = folder / f"{name}.json", CASES[name]
    if not quick and not file.is_file():
        cores = dict.fromkeys(USED, CORES)
        run = measure(folder, "edgeformer", cores, case.mbits[0] * MB_S, case.lasts_s, case.changes)
        found = phases(run, case.lasts_s)
        print(f"{case.title}: {found}", flush=True)
        file.write_text(json.dumps({"machine": run["machine"], **found}), encoding="utf-8")


def phases(run: Mapping[str, Any], lasts_s: float) -> dict[str, Any]:
    """Seconds of a text in the last part of each phase, and outputs that were wrong."""
    ends = [0.0, *run["made"], lasts_s]
    texts = [usual_s(run["series"], end - SETTLED * (end - begin), end) for begin, end in pairwise(ends)]
    return {"texts_s": texts, "wrong": wrong(run["series"])}


def shown(found: Mapping[str, Any]) -> str:
    """Each case, of records by name."""
    rows = []
    for name, case in CASES.items():
        if each := found.get(name):
            times = [f"{1e3 * taken:.0f}" if taken else "–" for taken in each["texts_s"]]
            rows.append([case.title, " → ".join(times), f"{each['wrong']}"])
    return table(["while it runs", "ms a text, by phase", "wrong outputs"], rows) if rows else NOTHING
