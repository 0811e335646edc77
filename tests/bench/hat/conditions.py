"""What changes while a cell is measured: bandwidths, within the paper's bounds or by a trace, and devices' modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.hat.cells import Cell
from bench.hat.scaling import ScaledLink
from bench.testbed.scenario import Link, Scenario
from bench.testbed.schedule import played
from bench.testbed.traces import BadTrace, read_trace
from checkpoints import DATA

STILL: Final = ("single", "unloaded", "rtt")
"""Experiments in which nothing changes: what they compare is one device's own speed."""

VARY: Final = (0.67, 1.33)
"""Of the middle of the paper's uplinks, 5 to 10 MB/s."""

VARY_DOWN: Final = (0.8, 1.2)
"""Of the middle of its downlinks, 10 to 15 MB/s."""

VARY_S: Final = 2.0

TRACES: Final[Mapping[str, Path]] = {
    "mahimahi-lte": DATA / "traces_network" / "mahimahi" / "ATT-LTE-driving-2016.csv",
    "hsdpa-3g": DATA / "traces_network" / "hsdpa_3g" / "norway_train_13.csv",
    "lumos-5g": DATA / "traces_network" / "lumos_5g" / "5g_trace_100_walking.csv",
}

PLAYED_S: Final = 60.0
"""Of a trace; about as long as a cell takes."""

LEAST_MEAN: Final = 0.1
"""Of the whole trace's mean: what is played of it may have less, and then is no more scaled up, into bursts."""

MOST_DEVICES: Final = 4
"""Of any scenario."""

GOLDEN: Final = 0.618033988749895
"""Multiples of it, without their whole part, are spread evenly, however many there are."""


def conditions(scenario: Scenario, cell: Cell, link: ScaledLink) -> Scenario:
    """The scenario with this cell's links and hosts. Raises BadTrace, OSError."""
    still = cell.experiment in STILL
    links = list(scenario.links)
    slow = [number for number, each in enumerate(links) if each.kind == "wan"]
    for device, number in enumerate(slow):
        wan = replace(links[number], up_mb_s=link.up_bytes_s / 1e6, down_mb_s=link.down_bytes_s / 1e6)
        if cell.trace:
            wan = _traced(wan, TRACES[cell.trace], cell.repeat * MOST_DEVICES + device)
        elif not still:
            wan = replace(wan, vary=(VARY, VARY_DOWN), vary_s=VARY_S)
        links[number] = wan
    hosts = (replace(each, modes=()) if still else each for each in scenario.hosts)
    return replace(scenario, links=tuple(links), hosts=tuple(hosts))


def _traced(wan: Link, path: Path, number: int) -> Link:
    """A link that plays a trace from a place of its own on, with its own bandwidths as the means of what it plays."""
    trace = read_trace(path)
    from_s = number * GOLDEN % 1.0 * trace.length_s
    down, up = played(trace, from_s).means(PLAYED_S)
    whole_down, whole_up = trace.means(trace.length_s)
    if not whole_down or whole_up == 0:
        raise BadTrace(f"{path}: carries nothing, which cannot be scaled")
    down_scale = wan.down_mb_s / max(down, LEAST_MEAN * whole_down)
    if up is None or whole_up is None:  # It is played in the proportion of the link's.
        return replace(wan, trace=str(path), trace_scale=(down_scale, down_scale), trace_from_s=from_s)
    up_scale = wan.up_mb_s / max(up, LEAST_MEAN * whole_up)
    return replace(wan, trace=str(path), trace_scale=(up_scale, down_scale), trace_from_s=from_s)
