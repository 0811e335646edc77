"""What was measured, read back by cell, and how far it may be trusted. Pure but for reading."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.edge.cells import ALONE, CALIBRATION, ENVIRONMENTS, REPEATS, Cell

Record = dict[str, Any]

CALIBRATED = 1.05
"""So far from what its quotas give may a group be whose links cost nothing; else none of its rows is a result."""

SHORT_WORK = 8.0
"""Periods of the quota that work between two barriers should last."""

DOUBTFUL = "°"
"""Behind a figure that is no result."""

LONGEST_S, REPEAT = 300.0, 0.3
"""What is longer from one record to the next was a break; a repeat takes such a share of the first run."""

STARTED_S, FLOPS_S, LOADED_BYTES_S = 6.0, 20e9, 5e8
"""Of a cell of whose shape none is known: its start, and what its devices compute and load a second together."""

UNPUBLISHED = ("waits", "computes", "cpu", "seconds", "cores", "values")
"""What a record has for whoever looks into a run, and no page shows."""


class Records:
    """Of one bench.

    Args:
        found: by the cells' names.
    """

    def __init__(self, found: dict[str, Record]) -> None:
        self.found = found

    @classmethod
    def of(cls, source: Path) -> Records:
        """Those of a folder, or of a file with one on each line; none where there is neither."""
        if source.is_file():
            lines = map(json.loads, source.read_text(encoding="utf-8").splitlines())
            return cls({line.pop("name"): line for line in lines})
        files = sorted(source.glob("*.json")) if source.is_dir() else []
        return cls({file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files})

    def lines(self) -> str:
        """What ``of`` reads from a file: as far as pages show it."""
        shown = {
            name: {key: value for key, value in record.items() if key not in UNPUBLISHED}
            for name, record in sorted(self.found.items())
        }
        return "".join(
            f"{json.dumps({'name': name, **found}, separators=(',', ':'))}\n" for name, found in shown.items()
        )

    def get(self, cell: Cell) -> Record | None:
        """A cell's, if it was measured, or refused."""
        return self.found.get(cell.name)

    def again(self, cell: Cell) -> list[Cell]:
        """What was measured of a cell: its rounds that are results, or all where none is; of a repeat itself."""
        rounds = [cell] if cell.repeat else [replace(cell, repeat=number) for number in range(REPEATS)]
        known = [each for each in rounds if "full_s" in (self.get(each) or {})]
        return [each for each in known if not self.doubts_of(each)] or known

    def seconds(self, cell: Cell) -> float | None:
        """Of the whole model, in the median of its rounds; None where there is no record, or the method did not fit."""
        return self.value(cell, "full_s") if self.again(cell) else None

    def one_s(self, cell: Cell, took: float) -> float:
        """Seconds of one device just before a cell; of one that is just this what it took."""
        local = self.seconds(cell.local()) or 1.0
        return took if cell.name == cell.local().name else float((self.get(cell) or {}).get("one_s", local))

    def ratio(self, cell: Cell, to: Cell) -> float | None:
        """How many times as long one cell takes as another, in the median of the rounds that have both."""
        found = self.ratios(cell, to)
        return statistics.median(found) if found else None

    def ratios(self, cell: Cell, to: Cell) -> list[float]:
        """The same of each round, least first; of all that there is where none has both: each over one device just
        before it, where that is the same device and prompt."""
        one, other = self._compared(cell, to), self._compared(to, cell)
        both = one.keys() & other.keys()
        if one and other and not both:
            return [statistics.median(one.values()) / statistics.median(other.values())]
        return sorted(one[number] / other[number] for number in both)

    def _compared(self, cell: Cell, to: Cell) -> dict[int, float]:
        found = {each.repeat: (each, float(self.found[each.name]["full_s"])) for each in self.again(cell)}
        alike = cell.local() == to.local()
        return {number: took / self.one_s(each, took) if alike else took for number, (each, took) in found.items()}

    def spread(self, cell: Cell, to: Cell) -> str:
        """The least and the greatest of a ratio, behind it; "" where there is but one."""
        found = self.ratios(cell, to)
        return f" [{found[0]:.2f}–{found[-1]:.2f}]" if len(found) > 1 else ""

    def slower(self, cell: Cell) -> str:
        """Of a group that takes longer than one device: whether its plan had said so; "" where it is faster."""
        one = self.one_s(cell, 0.0)
        if self.seconds(cell.local()) is None or (self.ratio(cell, cell.local()) or 0.0) <= 1:
            return ""
        return " (as planned)" if self.value(cell, "predicted_full_s") > one else " (not foreseen)"

    def doubts(self, cell: Cell) -> list[str]:
        """Why a cell is no result; nothing where one of its rounds is one."""
        return self.doubts_of(self.again(cell)[0]) if self.again(cell) else []

    def doubts_of(self, cell: Cell) -> list[str]:
        """The same of one record."""
        record = self.get(cell)
        if record is None or "refused" in record:
            return []
        found = []
        off = self.calibrated(cell)
        if cell.method not in (*ALONE, CALIBRATION):
            if off is None:
                found.append("no calibration")
            elif not 1 / CALIBRATED <= off <= CALIBRATED:
                found.append(f"calibration {off:.2f}")
            if record["periods"] < SHORT_WORK:
                found.append(f"{record['periods']:.1f} periods between barriers")
        if record["watched"]["bottleneck"]:
            found.append("machine")
        return found

    def calibrated(self, cell: Cell) -> float | None:
        """How many times as long the layers of its devices take over free links as the CPU time of the slowest of them
        does by its quota: as measured before it, also where another run has measured that again since."""
        record = self.get(cell) or {}
        if "calibration" in record:
            return float(record["calibration"])
        count = len(ENVIRONMENTS[cell.environment].cores)
        barrier = self.get(replace(cell.calibration(count), rows=0, dtype="float32"))
        return None if barrier is None else float(barrier["over_quota"])

    def value(self, cell: Cell, key: str) -> float:
        """A number of a cell's record, of its rounds the median; not a number where there is none."""
        found = [float(self.found[each.name].get(key, math.nan)) for each in self.again(cell)]
        return statistics.median(found) if found else math.nan

    def foreseen(self, cell: Cell) -> float:
        """How many times as long a cell was predicted to take as it took, in the median of its rounds."""
        rounds = [self.found[each.name] for each in self.again(cell)]
        return statistics.median(float(each["predicted_full_s"]) / float(each["full_s"]) for each in rounds)

    def marked(self, cell: Cell, text: str) -> str:
        """A figure of a cell for a table, with a mark where it is in doubt; "–" where there is none."""
        record = self.get(cell)
        if record is None:
            return "–"
        if "refused" in record:
            return "cannot" if cell.out else "does not fit"
        return f"{text}{DOUBTFUL}" if self.doubts(cell) else text


def expected_s(records: Records, cell: Cell) -> float:
    """About how long a cell takes: as long as it usually was from one record of its shape to the next, and a part of
    that for each repeat; where none is known, by its sizes."""
    found = sorted((record["began"], record["cell"]["shape"]) for record in records.found.values() if "began" in record)
    begun = [(datetime.fromisoformat(began).timestamp(), shape) for began, shape in found]
    gaps = [(shape, after - began) for (began, shape), (after, _) in pairwise(begun) if after - began < LONGEST_S]
    alike = [gap for shape, gap in gaps if shape == cell.shape]
    if not alike:
        return guessed_s(cell)
    return (1 + (cell.runs - 1) * REPEAT) * statistics.median(alike)


def guessed_s(cell: Cell) -> float:
    """Its start, its weights, and its runs with the one before them."""
    shape, rows = cell.model.model(cell.depth), cell.model.rows
    weights = shape.layers * (shape.kv_heads * shape.group_elements + shape.intermediate * shape.column_elements)
    forwards = (1 + cell.runs) * (rows + cell.new)
    return STARTED_S + weights * shape.dtype_bytes / LOADED_BYTES_S + 2 * weights * forwards / FLOPS_S
