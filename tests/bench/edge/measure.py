"""Measures cells: each leaves one JSON record in a file of its own, so that what is interrupted goes on there."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from bench.edge.cells import CALIBRATION, ENVIRONMENTS, LOCAL, MOST_BYTES, Cell
from bench.edge.groups import DEVICES, PERIOD_US, TERMINAL, Devices
from bench.edge.job import Job, Moment, ProductsJob, Result
from bench.edge.measured import Tables, profile
from bench.edge.methods import BARRIERS, METHODS, TRYING, thinned
from bench.edge.shapes import SHAPES
from bench.page import machine
from bench.streamed.told import DeviceFailed
from bench.testbed.cgroups import quota_of

from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan
from device_agent.planning.task import Task, Work
from device_agent.planning.trials import trial_of
from device_agent.profiling.links import LinksMeasured

Record = dict[str, Any]

Communication = Callable[[str, Task, float], float]
"""A shape's name, its task on all devices over free links, and seconds of one device for all layers: MB/s of every port
that stand for 500 Mb/s."""

REFERENCE_MBIT = 500.0

FEW = 5

LAST = ("waits", "computes", "cpu")
"""Of each member, in the last run."""


class Products(NamedTuple):
    """CPU seconds of each device: of a trial just before, and of the parts of a layer."""

    trial: list[float]
    tables: list[Tables]


class Measurement:
    """All cells of one bench.

    Args:
        folder: of the records.
        devices: None: what was measured is only read.
        communication: what the links stand for.
    """

    def __init__(self, folder: Path, devices: Devices, communication: Communication) -> None:
        self._folder, self._devices, self._communication = folder, devices, communication
        folder.mkdir(parents=True, exist_ok=True)

    def all(self, cells: Iterable[Cell], until: float, say: Callable[[str], None]) -> None:
        """Those that have no record yet, and what they stand on before them.

        until: none is begun that would not be done by then, by ``time.monotonic``, if it took as long as the last few.
        """
        taken = [0.0]
        for cell in cells:
            began = time.monotonic()
            if began + max(taken[-FEW:]) > until:
                say("the time is over; a later run goes on")
                return
            try:
                self.record(cell, say)
            except DeviceFailed as error:
                say(f"{cell.name}: failed: {error}")
            taken.append(time.monotonic() - began)

    def record(self, cell: Cell, say: Callable[[str], None]) -> Record:
        """A cell's record, read or measured. Raises DeviceFailed."""
        file = self._folder / f"{cell.name}.json"
        if file.is_file():
            found: Record = json.loads(file.read_text(encoding="utf-8"))
            return found
        began = datetime.now(timezone.utc)
        found = {"cell": cell.as_dict(), "began": began.isoformat(timespec="seconds"), **self._measured(cell, say)}
        part = file.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1), encoding="utf-8")
        part.replace(file)
        taken = (datetime.now(timezone.utc) - began).total_seconds()
        say(f"{cell.name}: {said(found)}; {taken:.0f} s")
        return found

    def _measured(self, cell: Cell, say: Callable[[str], None]) -> Record:
        environment, model = ENVIRONMENTS[cell.environment], cell.model
        one: Record = {}
        barrier: Record = {}
        if cell.method != LOCAL:
            one = self.record(cell.local(), say)
        if cell.method in BARRIERS:
            barrier = self.record(cell.calibration(len(environment.cores)), say)
        mb_s = 0.0
        if cell.mbit:
            mb_s = self._mb_s(cell.reference(), say) * environment.faster * cell.mbit / REFERENCE_MBIT
        known = self._known(cell)
        # This machine is faster now and slower then: the same products say by how much, for all methods alike.
        self._devices.set_quotas(environment.cores)
        now = self._devices.trial(DEVICES[: len(environment.cores)])
        drift = [after / before for after, before in zip(now, known.trial, strict=False)]
        slower = [each / cores for each, cores in zip(drift, environment.cores, strict=True)]
        budgets = [MOST_BYTES] * len(slower) if cell.method in (LOCAL, CALIBRATION) else list(environment.budgets)
        work = Work(model.rows, cell.new, model.rows)
        of = profile(known.tables, slower, budgets, mb_s, self._links(cell, mb_s))
        task = Task(model.model(), of, cell.names, TERMINAL, work)
        try:
            plan = METHODS[cell.method][1](task)
        except DoesNotFit as error:
            return {"refused": str(error), "mb_s": mb_s}
        short = task.shortened(cell.depth)
        run = thinned(plan, cell.depth)
        predicted, full = short.prefill(run).seconds, task.prefill(plan).seconds
        # What the terminal's rows take is in both.
        more = model.layers - cell.depth
        layers_s = (full - predicted) / more * cell.depth if more else predicted
        self._devices.set_quotas(environment.cores)
        self._devices.set_ports(mb_s)
        joined = JoinedPlan.of(run, "", "float32", 0, 0)
        trial = trial_of(short, run) if cell.method in TRYING else None
        job = Job(cell.shape, cell.depth, model.rows, joined.written(), cell.runs, cell.new, cell.dtype, trial)
        result, watched = self._devices.run(_ranked(joined), job)
        for report in result.reports:
            del report.moments[: result.trials]
        found = numbers(cell, result, run.members) | {"tried": result.tried}
        found |= {"predicted_layers_s": layers_s, "predicted_full_s": full, "drift": drift[0]}
        if barrier:
            found["calibration"] = barrier["over_quota"]
        if one:
            found["one_s"] = one["full_s"] * drift[0] / one["drift"]
        found |= {"mb_s": mb_s, "plan": words(plan), "cores": environment.cores}
        if cell.new:
            found["predicted_step_s"] = short.step(run).seconds
        held = task.held(plan)
        found["planned_bytes"] = {name: of.total for name, of in held.items()}
        found["planned_swept_bytes"] = {name: of.total for name, of in short.held(run).items()}
        return {**found, "machine": machine(), "watched": watched}

    def _mb_s(self, reference: Cell, say: Callable[[str], None]) -> float:
        """What 500 Mb/s are here."""
        local_s = self.record(reference, say)["full_s"]
        environment, model = ENVIRONMENTS[reference.environment], reference.model
        slower = [1 / cores for cores in environment.cores]
        free = profile(self._known(reference).tables, slower, environment.budgets, 0.0)
        names = DEVICES[: len(slower)]
        task = Task(model.model(), free, names, TERMINAL, Work(model.rows, 0, model.rows))
        return self._communication(reference.shape, task, local_s)

    def _links(self, cell: Cell, mb_s: float) -> list[LinksMeasured]:
        """Of a cell's devices, measured once for each bandwidth."""
        if cell.devices == 1:
            return []
        file = self._folder / f"{cell.environment}_{cell.devices}_{mb_s:.3g}.links"
        if not file.is_file():
            self._devices.set_quotas(ENVIRONMENTS[cell.environment].cores)
            self._devices.set_ports(mb_s)
            file.write_bytes(msgspec.json.encode(self._devices.links(cell.names)))
        return msgspec.json.decode(file.read_bytes(), type=list[LinksMeasured])

    def _known(self, cell: Cell) -> Products:
        """Of each device, measured once for each shape and kind of devices."""
        environment = cell.reference().environment
        file = self._folder / f"{environment}_{cell.shape}_{cell.dtype}.profile"
        if not file.is_file():
            cores = ENVIRONMENTS[environment].cores
            self._devices.set_quotas(cores)
            job = ProductsJob(cell.shape, max(cell.model.rows, SHAPES[cell.shape].rows), cell.dtype)
            names = DEVICES[: len(cores)]
            file.write_bytes(msgspec.json.encode((self._devices.trial(names), self._devices.products(names, job))))
        return Products(*msgspec.json.decode(file.read_bytes(), type=tuple[list[float], list[Tables]]))


def said(record: Record) -> str:
    """A record in a line."""
    if "refused" in record:
        return str(record["refused"])
    parts = ("compute", "wait", "ends")
    where = ", ".join(f"{part} {record[f'{part}_s']:.3f}" for part in parts)
    return f"{record['full_s']:.2f} s, predicted {record['predicted_full_s']:.2f}; a layer: {where}"


def _ranked(plan: JoinedPlan) -> list[str]:
    """Names of the members in the order of their ranks, from 1 on."""
    return [name for _, name in sorted(zip(plan.ranks, plan.names, strict=True))]


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
        "full_s": layers_s * cell.model.layers / cell.depth if cell.method == LOCAL else full,
        "compute_s": max(computes) / cell.depth,
        "wait_s": (layers_s - max(computes)) / cell.depth,
        "ends_s": total_s - layers_s,
        "over_quota": layers_s / max(moment.cpu_s / share for moment, share in zip(moments, cores, strict=False)),
        "periods": max(computes) / exchanges / quota_s,
        "waits": [moment.waits for moment in moments],
        "computes": computes,
        "cpu": [moment.cpu_s for moment in moments],
    }


def _waited(moment: Moment) -> float:
    return sum(seconds for kind, seconds in moment.waits.items() if kind != "entry")


def words(plan: GroupPlan) -> str:
    """A plan in a line: its kinds of layers, and how many of each."""
    kinds: dict[str, int] = {}
    for layer in plan.layers:
        kind = type(layer).__name__
        more = [name for name in ("mlp_by_rows", "keys_values", "prefix", "overlap") if getattr(layer, name, False)]
        said = " ".join([kind, *more])
        kinds[said] = kinds.get(said, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())
