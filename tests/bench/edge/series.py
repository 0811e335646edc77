"""A group that reads one text after another while something happens to a device or to links: each text's time.

Members are the product's own processes under quotas, the model is a small one with random weights.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.edge.groups import SCENARIO, TERMINAL
from bench.edge.job import PORT, SECRET
from bench.page import machine
from bench.random_llama import Shape, write_checkpoint
from bench.testbed.bed import Testbed
from bench.testbed.processes import environment
from bench.testbed.scenario import load

SHAPE = Shape(layers=4, positions=512)

Series = list[dict[str, Any]]
Changes = Sequence[tuple[float, Callable[[], object]]]
"""So many seconds from the first text on this is done, in their order."""

KEY = environment({"TRILBY_GROUP_KEY": SECRET})


def measure(
    folder: Path,
    mode: str,
    quotas: Mapping[str, float],
    mb_s: float,
    lasts_s: float,
    changes: Callable[[Testbed], Changes],
) -> dict[str, Any]:
    """One run of a mode on devices with these quotas: its texts, and when each of the changes was made."""
    model = folder / "series-model"
    if not (model / "config.json").is_file():
        write_checkpoint(SHAPE, model)
    with Testbed(load(SCENARIO, {"mb_s": f"{mb_s:g}", "packet": "16000"}), folder / "logs") as bed:
        where = bed.port(TERMINAL).address
        log = (folder / "logs" / "series.log").open("ab")
        words = ["bench.edge.series_portal", mode, where, str(model), ",".join(quotas), f"{lasts_s:g}"]
        popen: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
        portal = bed.spawn(TERMINAL, [sys.executable, "-m", *words], env=KEY, **popen)
        member = [sys.executable, "-m", "device_agent.group.member", "--model", str(model), "--threads", "1"]
        for name, cores in quotas.items():
            bed.host(name).set_cores(cores)  # They measure themselves under it.
            more = ["--join", f"{where}:{PORT}", "--name", name]
            bed.spawn(name, [*member, *more], env=KEY, stdout=log, stderr=log)
        due, made = list(changes(bed)), list[float]()
        assert portal.stdout is not None
        series: Series = [json.loads(portal.stdout.readline())]
        began = time.monotonic()
        for line in portal.stdout:
            series.append(json.loads(line))
            while due and time.monotonic() >= began + due[0][0]:
                made.append(time.monotonic() - began)
                due.pop(0)[1]()
    for one in series:
        one["at"] -= began
        one["noticed"] = {name: at - began for name, at in one["noticed"].items()}
    return {"machine": machine(), "series": series[1:], "made": made}


def wrong(series: Sequence[Mapping[str, Any]]) -> int:
    """Outputs that are not those of the first text; sums are added in other orders by other plans."""
    return sum(abs(one["check"] / series[0]["check"] - 1) > 1e-4 for one in series)


def usual_s(series: Sequence[Mapping[str, Any]], begin: float, end: float) -> float | None:
    """The median of the texts that were read between these moments, None where there is none."""
    taken = [one["s"] for one in series if begin <= one["at"] - one["s"] and one["at"] <= end]
    return statistics.median(taken) if taken else None
