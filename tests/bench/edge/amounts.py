"""What a measured job amounts to: the numbers of a record. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.edge.cells import ALONE, ENVIRONMENTS, Cell
from bench.edge.groups import PERIOD_US
from bench.edge.job import Moment, Result
from bench.testbed.cgroups import quota_of

from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.shape import ModelShape

Record = dict[str, Any]

LAST = ("waits", "computes", "cpu")
"""Of each member, in the last run."""


def numbers(cell: Cell, result: Result, members: Sequence[str]) -> Record:
    """What a result amounts to: medians over its runs, without the first."""
    steps = 1 + cell.new
    times = [ended - began for began, ended in zip(result.began, result.ended, strict=True)]
    reports = {report.name: report for report in result.reports}
    order = [reports[name] for name in members]
    runs = []
    for run in range(1, 1 + cell.runs):
        moments = [report.moments[run * steps] for report in order if len(report.moments) > run * steps]
        runs.append(one_run(times[run * steps], moments, cell))
    found: Record = {key: statistics.median(run[key] for run in runs) for key in runs[0] if key not in LAST}
    found |= {key: runs[-1][key] for key in LAST}
    found["seconds"] = [run["total_s"] for run in runs]
    if cell.new:
        found["step_s"] = statistics.median(
            time for run in range(1, 1 + cell.runs) for time in times[run * steps + 1 : (run + 1) * steps]
        )
    times_run = (1 + cell.runs) * steps
    middle = f"layer {cell.depth // 2}"
    found["bytes_a_layer"] = {report.name: report.sent.get(middle, 0) / times_run for report in order}
    found["check"] = result.check
    found["memory"] = {
        report.name: {"held": report.held, "grown_kb": report.peak_kb - report.base_kb} for report in order
    }
    return found


def one_run(total_s: float, moments: Sequence[Moment], cell: Cell) -> Record:
    """Of one forward: seconds of all, of its layers alone and for the model's full depth; where they went.

    A layer's seconds are split at the member that computes longest: it computes, and the rest of the time it waits.
    ``over_quota``: they are so many times what the member needs whose CPU seconds take longest by its quota.
    """
    layers_s = max(moment.left for moment in moments) - min(moment.entered for moment in moments)
    computes = [moment.left - moment.entered - _waited(moment) for moment in moments]
    most = computes.index(max(computes))
    exchanges = max(moments[most].exchanges - 1, 1)
    cores = ENVIRONMENTS[cell.environment].cores
    quota_s = quota_of(min(cores[: cell.devices]), PERIOD_US)[1] / 1e6
    full = total_s + (cell.model.layers / cell.depth - 1) * layers_s
    return {
        "total_s": total_s,
        "layers_s": layers_s,
        "full_s": layers_s * cell.model.layers / cell.depth if cell.method in ALONE else full,
        "compute_s": max(computes) / cell.depth,
        "wait_s": (layers_s - max(computes)) / cell.depth,
        "ends_s": total_s - layers_s,
        "over_quota": layers_s / max(moment.cpu_s / share for moment, share in zip(moments, cores, strict=False)),
        "periods": max(computes) / exchanges / quota_s,
        "waits": [moment.waits for moment in moments],
        "computes": computes,
        "cpu": [moment.cpu_s for moment in moments],
    }


def beside(one: Record, drift: float) -> Record:
    """What one device would take now, by a trial on it before either."""
    return {"drift": drift, "one_s": one["full_s"] * drift / one["drift"]}


def _waited(moment: Moment) -> float:
    return sum(seconds for kind, seconds in moment.waits.items() if kind != "entry")


def words(plan: GroupPlan) -> str:
    """A plan in a line: its kinds of layers, and how many of each."""
    kinds: dict[str, int] = {}
    for layer in plan.layers:
        kind = type(layer).__name__
        more = [name for name in ("mlp_by_rows", "keys_values", "prefix", "overlap") if getattr(layer, name, False)]
        more += [f"in {pieces} pieces"] if (pieces := getattr(layer, "pieces", 1)) > 1 else []
        said = " ".join([kind, *more])
        kinds[said] = kinds.get(said, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def heads(shape: ModelShape, plan: GroupPlan, names: Sequence[str]) -> list[list[int]]:
    """How many KV groups each device computes, by layer; [] of a layer that is shared by rows."""
    found = []
    for layer in plan.layers:
        groups = list(getattr(layer, "groups", ()))
        if isinstance(layer, Whole):
            groups = [shape.kv_heads * (at == layer.member) for at in range(len(plan.members))]
        by_name = dict(zip(plan.members, groups, strict=False))
        found.append([by_name.get(name, 0) for name in names] if groups else [])
    return found
