"""What changes while a cell is measured: bandwidths, within the paper's bounds or by a trace, and devices' modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.hat.cells import Cell
from bench.hat.scaling import ScaledLink
from bench.testbed.scenario import Scenario
from bench.testbed.traces import read_trace
from checkpoints import DATA

STILL: Final = ("single", "unloaded", "rtt")
"""Experiments in which nothing changes: what they compare is one device's own speed."""

VARY: Final = (0.67, 1.33)
"""Of the middle of the paper's uplinks, 5 to 10 MB/s."""

VARY_S: Final = 2.0

TRACES: Final[Mapping[str, Path]] = {
    "mahimahi-lte": DATA / "traces_network" / "mahimahi" / "ATT-LTE-driving-2016.csv",
    "hsdpa-3g": DATA / "traces_network" / "hsdpa_3g" / "norway_train_13.csv",
    "lumos-5g": DATA / "traces_network" / "lumos_5g" / "5g_trace_100_walking.csv",
}


def conditions(scenario: Scenario, cell: Cell, link: ScaledLink) -> Scenario:
    """The scenario with this cell's links and hosts; a trace is scaled to the link's mean. Raises BadTrace, OSError."""
    still = cell.experiment in STILL
    up, down = link.up_bytes_s / 1e6, link.down_bytes_s / 1e6
    wan = next(each for each in scenario.links if each.kind == "wan")
    wan = replace(wan, up_mb_s=up, down_mb_s=down)
    if cell.trace:
        path = TRACES[cell.trace]
        trace = read_trace(path)
        whole = trace.coarser(trace.length_s)  # One step, of the mean over time: steps are of unequal length.
        scale = down / whole.down[0] if whole.up is None else up / whole.up[0]
        wan = replace(wan, trace=str(path), trace_scale=scale)
    elif not still:
        wan = replace(wan, vary=VARY, vary_s=VARY_S)
    links = (replace(wan, a=each.a, b=each.b) if each.kind == wan.kind else each for each in scenario.links)
    hosts = (replace(each, modes=()) if still else each for each in scenario.hosts)
    return replace(scenario, links=tuple(links), hosts=tuple(hosts))
