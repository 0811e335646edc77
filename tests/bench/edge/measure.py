"""Measures cells: each leaves one JSON record in a file of its own, so that what is interrupted goes on there."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import msgspec
from bench.edge.amounts import Record, beside, heads, numbers, words
from bench.edge.cells import ACCELERATE, CALIBRATION, ENVIRONMENTS, LOCAL, MOST_BYTES, Cell
from bench.edge.groups import DEVICES, TERMINAL, Devices
from bench.edge.job import Job, ProductsJob
from bench.edge.measured import Tables, profile
from bench.edge.methods import BARRIERS, METHODS, TRYING, thinned
from bench.edge.shapes import SHAPES
from bench.page import machine
from bench.streamed.told import DeviceFailed

from device_agent.group.holding.narrowing import can_narrow
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.task import Task, Work
from device_agent.planning.trials import trial_of
from device_agent.profiling.links import LinksMeasured

Communication = Callable[[str, Task, float], float]
"""A shape's name, its task on all devices over free links, and seconds of one device for all layers: MB/s of every port
that stand for 500 Mb/s."""

REFERENCE_MBIT = 500.0

FEW = 5


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
        python: an interpreter with accelerate, for its cells.
    """

    def __init__(self, folder: Path, devices: Devices, communication: Communication, python: str = "") -> None:
        self._folder, self._devices, self._communication, self._python = folder, devices, communication, python
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
        if cell.name != cell.local().name:
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
        drift = by_kind([after / before for after, before in zip(now, known.trial, strict=False)], environment.cores)
        if cell.method == ACCELERATE:
            return self._accelerate(cell, one) | beside(one, drift[0])
        slower = [each / cores for each, cores in zip(drift, environment.cores, strict=True)]
        budgets = [MOST_BYTES] * len(slower) if cell.method in (LOCAL, CALIBRATION) else list(environment.budgets)
        work = Work(model.rows, cell.new, model.rows)
        of = profile(known.tables, slower, budgets, mb_s, self._links(cell, mb_s))
        task = Task(model.model(), of, cell.names, TERMINAL, work)
        began = time.perf_counter()
        try:
            plan = METHODS[cell.method][1](task)
        except DoesNotFit as error:
            return {"refused": str(error), "mb_s": mb_s}
        planned_s = time.perf_counter() - began
        if cell.out and not can_narrow(plan, model.spec()):
            return {"refused": f"{words(plan)}: these leave no heads out", "mb_s": mb_s}
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
        repeats = cell.runs, cell.new, cell.out
        job = Job(cell.shape, cell.depth, model.rows, joined.written(), *repeats, cell.dtype, trial)
        result, watched = self._devices.run(_ranked(joined), job)
        for report in result.reports:
            del report.moments[: result.trials]
        found = numbers(cell, result, run.members) | {"tried": result.tried}
        found |= {"predicted_layers_s": layers_s, "predicted_full_s": full, "drift": drift[0]}
        if barrier:
            found["calibration"] = barrier["over_quota"]
        if one:
            found |= beside(one, drift[0])
        found |= {"mb_s": mb_s, "plan": words(plan), "cores": environment.cores, "planned_s": planned_s}
        found["heads"] = heads(task.shape, plan, DEVICES[: len(environment.cores)])
        if cell.new:
            found["predicted_step_s"] = short.step(run).seconds
        held = task.held(plan)
        found["planned_bytes"] = {name: of.total for name, of in held.items()}
        found["planned_swept_bytes"] = {name: of.total for name, of in short.held(run).items()}
        return {**found, "machine": machine(), "watched": watched}

    def _accelerate(self, cell: Cell, one: Record) -> Record:
        """The layers as the library runs them on the first device."""
        self._devices.set_quotas(ENVIRONMENTS[cell.environment].cores)
        model = cell.model
        job = {"config": {**model.config, model.depth: cell.depth}, "rows": model.rows, "runs": cell.runs}
        said, watched = self._devices.alone(DEVICES[0], self._python, "bench.rivals.accelerate_layers", job)
        layers_s = statistics.median(said["seconds"])
        found = {"layers_s": layers_s, "total_s": layers_s, "full_s": layers_s * model.layers / cell.depth}
        found |= {"compute_s": layers_s / cell.depth, "wait_s": 0.0, "ends_s": 0.0}
        found |= {f"predicted_{key}": one[f"predicted_{key}"] for key in ("layers_s", "full_s")}
        return {**found, "mb_s": 0.0, "seconds": said["seconds"], "machine": machine(), "watched": watched}

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
        with suppress(OSError, msgspec.ValidationError):  # There is none, or one that was measured otherwise.
            return msgspec.json.decode(file.read_bytes(), type=list[LinksMeasured])
        self._devices.set_quotas(ENVIRONMENTS[cell.environment].cores)
        self._devices.set_ports(mb_s)
        found = self._devices.links(cell.names)
        file.write_bytes(msgspec.json.encode(found))
        return found

    def _known(self, cell: Cell) -> Products:
        """Of each device, measured once for each shape in each environment: the smaller a quota, the more CPU seconds
        the same products take, by a third at a seventh of a core, since others use the caches in between."""
        cores = ENVIRONMENTS[cell.environment].cores
        file = self._folder / f"{cell.environment}_{cell.shape}_{cell.dtype}.profile"
        if not file.is_file():
            self._devices.set_quotas(cores)
            job = ProductsJob(cell.shape, max(cell.model.rows, SHAPES[cell.shape].rows), cell.dtype)
            names = DEVICES[: len(cores)]
            before = self._devices.trial(names)
            products = self._devices.products(names, job)
            around = zip(before, self._devices.trial(names), strict=True)
            trial = [(one + other) / 2 for one, other in around]  # The machine is another a minute later.
            file.write_bytes(msgspec.json.encode((trial, products)))
        return Products(*msgspec.json.decode(file.read_bytes(), type=tuple[list[float], list[Tables]]))


def by_kind(drift: Sequence[float], cores: Sequence[float]) -> list[float]:
    """Of each device the median of those with the same quota: on the same cores it is by chance that they differ."""
    return [statistics.median(each for each, other in zip(drift, cores, strict=True) if other == own) for own in cores]


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
