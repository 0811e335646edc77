"""What is said before anything is measured, of devices that compute at their nominal speed: where lending pays, and
what EdgeFormer's λ decides. Pure."""

from __future__ import annotations

from functools import lru_cache

from bench.edge.methods import METHODS
from bench.edge.shapes import SHAPES, Shape
from bench.page import table

from device_agent.planning.forms import Lent
from device_agent.planning.head_allocation import algorithm_1, allocated, score
from device_agent.planning.head_times import head_times
from device_agent.planning.lending_map import NOMINAL_FLOPS_S, MapPoint, lending_map, nominal_profile
from device_agent.planning.lending_search import LendingSearch
from device_agent.planning.task import Task, Work

ROWS = (32, 128, 512, 2048, 8192, 32768)
RATIOS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Bytes that a link carries for each operation of a device."""

PAPERS, OURS = 50e6 / 13e12, 3e-3
"""400 Mb/s beside 13 TFLOPS; about what links of the page stand at."""

SPEEDS = (20e12, 13e12, 7e12)
WEIGHTS = (0.2, 0.4, 0.6, 0.8, 1.0)


@lru_cache(maxsize=1)
def points(name: str) -> list[list[MapPoint]]:
    """The map of two devices, by links, then by rows."""
    return lending_map(SHAPES[name].model(1), ROWS, RATIOS)


def lent_where(name: str) -> str:
    """The map as a table: what pays most, and how many times as fast a layer is with it."""
    gains = {"attention": lambda at: at.attention, "projections": lambda at: at.projections}
    rows = [
        [f"{ratio:.0e}", *("–" if at.best == "neither" else f"{at.best} {gains[at.best](at):.2f}" for at in line)]
        for ratio, line in zip(RATIOS, points(name), strict=True)
    ]
    return table(["bytes per operation", *(f"{count} rows" for count in ROWS)], rows)


def operations_s(shape: Shape, local_s: float) -> float:
    """Operations a second of the one device that takes so long for all layers."""
    return LendingSearch(_pair(shape, 1.0)).whole_s(0) * NOMINAL_FLOPS_S * shape.layers / local_s


def halves(shape: Shape, bytes_per_flop: float) -> dict[str, float]:
    """How many times as fast a layer is of which half is lent to an equal device, by method."""
    search, found = LendingSearch(pair := _pair(shape, bytes_per_flop)), {}
    for method in ("lend-attention", "lend-projections"):
        layer = METHODS[method][1](pair).layers[0]
        assert isinstance(layer, Lent)
        found[method] = search.whole_s(0) / search.seconds(layer)
    return found


def _pair(shape: Shape, bytes_per_flop: float) -> Task:
    one = shape.model(1)
    profile = nominal_profile(one, [NOMINAL_FLOPS_S] * 2, bytes_per_flop * NOMINAL_FLOPS_S)
    return Task(one, profile, ("0", "1"), "0", Work(shape.rows, 0, shape.rows))


def by_weight(name: str) -> str:
    """Heads that 20 : 13 : 7 keep of a layer, by λ, in the time in which the first alone computes three quarters."""
    shape = SHAPES[name]
    profile = nominal_profile(shape.model(1), SPEEDS, OURS * NOMINAL_FLOPS_S * 13)
    names = tuple(device.name for device in profile.devices)
    times = head_times(Task(shape.model(1), profile, names, names[0], Work(shape.rows, 0, shape.rows)), 0)
    count = shape.model(1).kv_heads
    importance = [(head * 7 % count) / count for head in range(count)]
    limit_s = times.floor_s + times.heads[0][count * 3 // 4]
    rows = []
    for weight in WEIGHTS:
        found = allocated(times, importance, limit_s, weight)
        worth = score(times, importance, found, weight)
        counts = " / ".join(map(str, found.counts))
        rows.append([f"{weight:g}", f"{found.kept}", counts, f"{worth:.1f}"])
    greedy = algorithm_1(times, importance, limit_s)
    rows.append(["Algorithm 1", f"{greedy.kept}", " / ".join(map(str, greedy.counts)), ""])
    return table(["λ", f"heads kept of {count}", "by device", "score"], rows)
