"""Measures what a bench has planned and has no record of yet, then fills its page."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bench.edge.cells import ACCELERATE, Cell
from bench.edge.groups import Devices
from bench.edge.measure import Communication, Measurement
from bench.edge.records import Record, Records, expected_s
from bench.page import ROOT, filled, names
from bench.testbed.possible import obstacle

PAGES = ROOT / "docs" / "results"

Figures = Mapping[str, Callable[[Records], str]]
"""What a page shows, by name: of what was not measured a dash."""


@dataclass(frozen=True)
class Apart:
    """What is measured and is no cell.

    Attributes:
        name: of its record.
        seconds: that it takes, about.
        write: measures what a folder does not have yet; of it less where the second argument says that time is short.
        short: whether it does anything then; else it is left out where it would take too long.
    """

    name: str
    seconds: float
    write: Callable[[Path, bool], None]
    short: bool


def run(
    name: str,
    about: str,
    cells: Callable[[bool], Iterator[Cell]],
    communication: Communication,
    figures: Figures,
    apart: Sequence[Apart],
    packet: int,
    draw: Callable[[Records, Path], None] | None = None,
) -> None:
    """The command line of a bench.

    apart: what is no cell, measured behind them.

    packet: bytes; see ``Devices``.

    draw: the page's pictures of its records, into a folder.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the headline rows alone, once")
    parser.add_argument("--minutes", type=float, help="as much as fits, the headline first; a later run goes on")
    parser.add_argument("--list", action="store_true", help="what is planned, and what of it has a record")
    parser.add_argument("--only", default="", help="what has this in its name")
    parser.add_argument("--page", action="store_true", help="fill the page from what there is, and measure nothing")
    parser.add_argument("--published", action="store_true", help="measure what the published page lacks, and add to it")
    parser.add_argument("--accelerate", metavar="PYTHON", help="an interpreter with accelerate and transformers")
    kept = ROOT / "build" / f"bench-{name}"
    parser.add_argument("--records", type=Path, default=kept, help="another folder for records; no page then")
    arguments = parser.parse_args()
    began = time.monotonic()
    over = math.inf if arguments.minutes is None else began + 60 * arguments.minutes
    apart = [each for each in apart if arguments.only in each.name]
    folder, published = arguments.records, {}
    if arguments.published:
        published = Records.of(PAGES / f"{name}-records.jsonl").found
    python = arguments.accelerate or (sys.executable if find_spec("accelerate") else "")
    planned = [cell for cell in once_each(cells(arguments.quick)) if arguments.only in cell.name]
    if not python and any(cell.method == ACCELERATE for cell in planned):
        print("accelerate is not installed here, and left out: --accelerate names an interpreter that has it")
        planned = [cell for cell in planned if cell.method != ACCELERATE]
    missing = [cell for cell in planned if cell.name not in {**published, **Records.of(folder).found}]
    if arguments.list:
        known = Records({**Records.of(PAGES / f"{name}-records.jsonl").found, **Records.of(folder).found})
        for cell in planned:
            print(f"{'to do' if cell in missing else '':5} {expected_s(known, cell):4.0f} s  {cell.name}")
        whole, left = (sum(expected_s(known, cell) for cell in each) for each in (planned, missing))
        for each in (each for each in apart if each.short or not arguments.quick):
            lacks = each.name not in known.found
            print(f"{'to do' if lacks else '':5} {each.seconds:4.0f} s  {each.name}")
            whole, left = whole + each.seconds, left + each.seconds * lacks
        print(f"about {whole / 60:.0f} minutes for all of it, {left / 60:.0f} for what is to do")
        return
    if missing and not arguments.page:
        if obstacle():
            raise SystemExit(f"no emulated networks here: {obstacle()}")
        measured = {**published, **Records.of(folder).found}
        until = over - sum(each.seconds for each in apart if each.short and each.name not in measured)
        with Devices(folder / "logs", packet) as devices:
            measurement = Measurement(folder, devices, communication, python)
            measurement.all(
                missing, until, lambda text: print(f"{time.monotonic() - began:5.0f} s  {text}", flush=True)
            )
    if not arguments.page:
        folder.mkdir(parents=True, exist_ok=True)
        for stem, record in published.items():
            file = folder / f"{stem}.json"
            if "cell" not in record and not file.is_file():
                file.write_text(json.dumps(record), encoding="utf-8")  # It goes on from these.
        for each in apart:
            if each.short or (not arguments.quick and time.monotonic() + each.seconds <= over):
                each.write(folder, arguments.quick)
    if folder == kept and not arguments.only:
        found = {**published, **Records.of(folder).found}
        fill(name, figures, found)
        if draw is not None:
            draw(Records(found), PAGES / name)


def once_each(cells: Iterable[Cell]) -> list[Cell]:
    """Of cells of one name the first."""
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(cell.name, cell)
    return list(found.values())


def pages_of(page: str, pages: Path = PAGES) -> list[Path]:
    """``<page>.md``, and those called ``<page>-….md``."""
    return [pages / f"{page}.md", *sorted(pages.glob(f"{page}-*.md"))]


def fill(page: str, figures: Figures, found: Mapping[str, Record], pages: Path = PAGES) -> None:
    """Fill all ``pages_of`` a bench, and write its records beside them. Raises ValueError for an unknown figure."""
    records = Records(dict(found))
    for file in pages_of(page, pages):
        text = file.read_text(encoding="utf-8")
        unknown = [name for name in names(text) if name not in figures]
        if unknown:
            raise ValueError(f"{file.name} wants figures that nobody makes: {', '.join(unknown)}")
        file.write_text(filled(text, lambda name: figures[name](records)), encoding="utf-8")
    (pages / f"{page}-records.jsonl").write_text(records.lines(), encoding="utf-8")
