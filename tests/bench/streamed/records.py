"""What was measured: a JSON record a cell, and all of them as one file beside the page."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.streamed.cases import MODELS, PROMPT, SETTINGS, Cell

Record = dict[str, Any]
Row = tuple[str, str, int, float]
"""Model, setting, sessions and bandwidth."""

_PLAIN = {"vary": False, "room": 0, "planned": 0, "prompt": PROMPT}


class Records:
    """What was measured, by cell."""

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("*.json"))
        self.found: list[Record] = [_PLAIN | json.loads(file.read_text(encoding="utf-8")) for file in files]

    def of(self, row: Row, method: str, **special: Any) -> list[Record]:
        """All repeats of what is plain but for what is ``special``, see `Cell`."""
        wanted = {**dict(zip(("model", "setting", "sessions", "mbit"), row, strict=True)), "method": method}
        wanted |= _PLAIN | special
        return [record for record in self.found if all(record[key] == value for key, value in wanted.items())]

    def rows(self) -> list[Row]:
        """All that was measured without something special, in the order of the page: least memory first."""
        seen = {
            (r["model"], r["setting"], r["sessions"], r["mbit"])
            for r in self.found
            if all(r[key] == value for key, value in _PLAIN.items())
        }
        order = list(SETTINGS)[::-1]
        return sorted(seen, key=lambda row: (row[3], -list(MODELS).index(row[0]), order.index(row[1]), row[2]))


def token_s(records: Iterable[Record]) -> float | None:
    """The median of seconds a token; None where it was not measured or does not run."""
    found = [record["token_s"] for record in records if not record["refused"]]
    return statistics.median(found) if found else None


def missing(cells: Iterable[Cell], folder: Path) -> list[Cell]:
    """Those without a record."""
    return [cell for cell in cells if not (folder / f"{cell.name}.json").is_file()]


def pack(records: Records, cells: Iterable[Cell], file: Path) -> None:
    """The records of these cells, one a line."""
    names = {cell.name for cell in cells}
    lines = [json.dumps(each) for each in records.found if cell_of(each).name in names]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def unpack(file: Path, folder: Path) -> int:
    """What was packed, but for what is there; how many."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    found = [json.loads(line) for line in lines]
    new = [(folder / f"{cell_of(each).name}.json", each) for each in found]
    new = [(path, each) for path, each in new if not path.is_file()]
    for path, each in new:
        path.write_text(json.dumps(each), encoding="utf-8")
    return len(new)


def cell_of(record: Record) -> Cell:
    """Which it is of."""
    return Cell(**{name: record[name] for name in Cell.__dataclass_fields__ if name in record})


START_S = 75.0
"""To begin a setting's processes and measure its devices."""

CELL_S = {
    "edgeshard-offloaded": 130.0,
    "offloaded": 50.0,
    "no-prefetch": 55.0,
    "llama.cpp": 240.0,
    "accelerate": 30.0,
    "edgeshard": 15.0,
    "galaxy": 15.0,
    "pipeline": 15.0,
}
"""As they were measured, but for llama.cpp."""

OTHER_CELL_S = 70.0


def predicted_s(cells: Sequence[Cell], records: Records) -> float:
    """Seconds that these cells take: what the same took before, or the same method, or else a guess."""
    total, place = 0.0, None
    for cell in cells:
        alike = [r for r in records.found if r["method"] == cell.method]
        took = [r["took_s"] for r in alike]
        same = [r["took_s"] for r in alike if (r["setting"], r["sessions"]) == (cell.setting, cell.sessions)]
        guess = CELL_S.get(cell.method, OTHER_CELL_S)
        total += statistics.fmean(same or took or [guess])
        total += START_S * ((cell.model, cell.setting) != place)
        place = cell.model, cell.setting
    return total
