"""How long what is planned takes: what runs took before, and a start for each group of them. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean
from typing import Final

from bench.hat.cells import Cell
from bench.hat.methods import METHODS
from bench.hat.records import Place, Record

START_S: Final = {"demo": 50.0, "wide": 120.0}
"""To start and warm a method's processes: the means over the published runs, of the gaps between one and the next."""

SECONDS: Final = "machine.seconds"


def group_of(cell: Cell) -> Hashable:
    """What cells share that are measured on the same processes, one after the other: within a repeat."""
    method = METHODS[cell.method]
    flags = tuple(method.device()), tuple(method.cloud(cell.dataset)), method.mode == "cloud"
    return cell.repeat, cell.setting, flags, cell.stages, cell.experiment == "stages", cell.experiment == "rtt"


def grouped(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells in their groups, each where its first one is."""
    groups: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(group_of(cell), []).append(cell)
    return list(groups.values())


def predicted_s(cells: Sequence[Cell], records: Sequence[Record]) -> float:
    """Seconds that these cells take, starts and all, by what the same ones took, or else those of their experiment."""
    same: dict[Place, list[float]] = {}
    alike: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        if seconds := record.numbers.get(SECONDS):
            same.setdefault(record.place, []).append(seconds)
            alike.setdefault((record.place.experiment, record.place.setting, record.place.dataset), []).append(seconds)
    took = (
        same.get(Place.of(cell)) or alike.get((cell.experiment, cell.setting, cell.dataset)) or [60.0] for cell in cells
    )
    return sum(map(fmean, took)) + sum(START_S[group[0].setting] for group in grouped(cells))
