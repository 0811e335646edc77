"""What one device takes for each part of a model, measured with the weights of one layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import cycle, product
from math import prod
from time import perf_counter

import torch

from device_agent.planning.profile import AXES
from device_agent.planning.table import Table
from device_agent.profiling.end_runs import EndRuns
from device_agent.profiling.grid import MeasuredSizes, sizes_of
from device_agent.profiling.layer_runs import NORMS, LayerRuns
from device_agent.profiling.reordered_runs import ReorderedRuns, has_order
from device_agent.profiling.timing import LONG_S, Clock, Stopwatch, Timed
from split_model.checkpoint import Checkpoint

SPEND_S, QUICK_SPEND_S = 0.06, 0.02
"""For the repeats of what is measured together."""

Told = Callable[[int, int], None]
"""How many sizes are measured of how many."""

_BY_GROUPS = ("query", "key_value", "output")
_BY_COLUMNS = ("up", "down")

_Point = tuple[int, ...]


@torch.inference_mode()
def measured_seconds(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    quick: bool = False,
    told: Told | None = None,
    clock: Clock = perf_counter,
    device: torch.device | str = "cpu",
) -> dict[str, Table]:
    """A table for each part in `AXES`, of layers on `device`; the two ends are measured on the CPU, where groups have
    them.

    Computes on this thread, in some seconds for a small model, with the weights of one layer, in copies where they are
    few. What takes long is not measured at more rows: lines go on. Seconds are those of `clock`. Raises BadCheckpoint.
    """
    return _Measuring(checkpoint, dtype, quick, told, clock, torch.device(device)).tables()


class _Measuring:
    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        quick: bool,
        told: Told | None,
        clock: Clock,
        device: torch.device,
    ) -> None:
        self._checkpoint, self._dtype, self._told, self._device = checkpoint, dtype, told, device
        self._sizes = sizes_of(checkpoint.spec, quick)
        done = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
        self._watch = Stopwatch(QUICK_SPEND_S if quick else SPEND_S, clock, done)
        self._axes = _axes(self._sizes, has_order(checkpoint.spec))
        self._points: dict[str, dict[_Point, Timed]] = {part: {} for part in self._axes}
        self._total = sum(prod(map(len, axes)) for axes in self._axes.values())

    def tables(self) -> dict[str, Table]:
        *shards, whole = self._sizes.shards
        layer = LayerRuns(self._checkpoint, self._dtype, *whole, self._device)
        # The whole layer first: it says at how many rows what is smaller need not be measured.
        self._measure_layer(layer)
        self._measure_ends(EndRuns(self._checkpoint, self._dtype), layer)
        del layer
        for groups, columns in shards:
            self._measure_layer(LayerRuns(self._checkpoint, self._dtype, groups, columns, self._device))
        if "reordered" in self._axes:
            self._measure_reordered(ReorderedRuns(self._checkpoint, self._dtype, self._device))
        if self._told is not None:
            self._told(self._total, self._total)
        return {part: self._table(part) for part in self._axes}

    def _measure_layer(self, layer: LayerRuns) -> None:
        widths = {**dict.fromkeys(_BY_GROUPS, (layer.groups,)), **dict.fromkeys(_BY_COLUMNS, (layer.columns,))}
        for rows in self._axes["up"][0]:
            timed = self._watch.timed(layer.parts(rows))
            # Of two in a layer one.
            timed["norm"] = Timed(sum(timed.pop(each).seconds for each in NORMS) / 2)
            self._keep({(part, (rows, *widths.get(part, ()))): each for part, each in timed.items()})
            if self._too_long(rows, timed, timed):
                break
        # In a step another part comes before, which leaves little of the last layer's attention in the caches.
        others = cycle([parts["output"] for parts in layer.parts(1)])
        for rows in self._axes["attend"][0]:
            timed = {}
            for positions in self._sizes.positions:
                timed = self._watch.timed(layer.attend(rows, positions), between=lambda: next(others)())
                self._keep({("attend", (rows, positions, layer.groups)): timed["attend"]})
            if self._too_long(rows, timed, timed):
                break

    def _measure_ends(self, ends: EndRuns, layer: LayerRuns) -> None:
        runs = [run for parts in layer.parts(1) for run in parts.values()]

        def other_layers() -> None:
            for run in runs:
                run()

        for part, run_of, share in (("embedding", ends.embedding, 1.0), ("head", ends.head, ends.whole)):
            for rows in self._axes[part][0]:
                timed = self._watch.timed([{part: run_of(rows)}], between=other_layers)
                self._keep({(part, (rows,)): Timed(share * timed[part].seconds)})
                if self._too_long(rows, timed, [part]):
                    break

    def _measure_reordered(self, runs: ReorderedRuns) -> None:
        for rows in self._axes["reordered"][0]:
            timed = {}
            for positions in self._sizes.positions:
                timed = self._watch.timed([{"reordered": runs.run(rows, positions)}])
                self._keep({("reordered", (rows, positions)): timed["reordered"]})
            more = [each for each in self._axes["reordered"][0] if each > rows]
            if self._too_long(rows, timed, timed) or (more and not runs.fits(more[0], self._sizes.positions[-1])):
                self._cut("reordered", rows)
                break

    def _keep(self, timed: Mapping[tuple[str, _Point], Timed]) -> None:
        """What was measured; what is known stays as it is."""
        for (part, point), each in timed.items():
            self._points[part].setdefault(point, each)
        if self._told is not None:
            self._told(sum(map(len, self._points.values())), self._total)

    def _too_long(self, rows: int, timed: Mapping[str, Timed], parts: Iterable[str]) -> bool:
        """Whether no more rows are measured of these parts, since what they took now is long enough."""
        if max(each.seconds for each in timed.values()) < LONG_S:
            return False
        for part in parts:
            self._cut(part, rows)
        return True

    def _cut(self, part: str, rows: int) -> None:
        first, *others = self._axes[part]
        self._axes[part] = (tuple(each for each in first if each <= rows), *others)

    def _table(self, part: str) -> Table:
        axes, points = self._axes[part], self._points[part]
        return Table(axes, tuple(self._seconds(points[point]) for point in product(*axes)))

    def _seconds(self, timed: Timed) -> float:
        return timed.seconds * (self._watch.pauses if timed.short else 1.0)


def _axes(sizes: MeasuredSizes, reordered: bool) -> dict[str, tuple[tuple[int, ...], ...]]:
    of = {"rows": sizes.rows, "positions": sizes.positions, "groups": sizes.groups, "columns": sizes.columns}
    found = {part: tuple(of[axis] for axis in axes) for part, axes in AXES.items() if part != "reordered" or reordered}
    found["head"] = (sizes.head_rows,)
    if sizes.image_rows:
        found["embedding"] = ((sizes.image_rows,),)
    return found
