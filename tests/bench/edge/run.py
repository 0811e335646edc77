"""Measures what a bench has planned and has no record of yet, then fills its page."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.edge.cells import Cell
from bench.edge.groups import Devices
from bench.edge.measure import Communication, Measurement
from bench.edge.records import Record, Records, expected_s
from bench.page import ROOT, filled, names
from bench.testbed.possible import obstacle

PAGES = ROOT / "docs" / "results"

Figures = Mapping[str, Callable[[Records], str]]
"""What a page shows, by name: of what was not measured a dash."""


def run(
    name: str,
    about: str,
    cells: Callable[[bool], Iterator[Cell]],
    communication: Communication,
    figures: Figures,
    apart: Callable[[Path, bool], None],
    apart_s: float,
    packet: int,
) -> None:
    """The command line of a bench.

    apart: measures what is no cell, where that has no record yet; about so many seconds of it.

    packet: bytes; see ``Devices``.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the headline rows alone, once")
    parser.add_argument("--minutes", type=float, help="as much as fits, the headline first; a later run goes on")
    parser.add_argument("--list", action="store_true", help="what is planned, and what of it has a record")
    parser.add_argument("--only", default="", help="cells whose names contain this")
    parser.add_argument("--page", action="store_true", help="fill the page from what there is, and measure nothing")
    parser.add_argument("--published", action="store_true", help="measure what the published page lacks, and add to it")
    kept = ROOT / "build" / f"bench-{name}"
    parser.add_argument("--records", type=Path, default=kept, help="another folder for records; no page then")
    arguments = parser.parse_args()
    folder, published = arguments.records, {}
    if arguments.published:
        published = Records.of(PAGES / f"{name}-records.jsonl").found
    planned = [cell for cell in dict.fromkeys(cells(arguments.quick)) if arguments.only in cell.name]
    missing = [cell for cell in planned if cell.name not in {**published, **Records.of(folder).found}]
    if arguments.list:
        known = Records({**Records.of(PAGES / f"{name}-records.jsonl").found, **Records.of(folder).found})
        for cell in planned:
            print(f"{'to do' if cell in missing else '':5} {expected_s(known, cell):4.0f} s  {cell.name}")
        whole, left = (sum(expected_s(known, cell) for cell in each) + apart_s for each in (planned, missing))
        print(f"about {whole / 60:.0f} minutes for all of it, {left / 60:.0f} for what is to do")
        return
    if missing and not arguments.page:
        if obstacle():
            raise SystemExit(f"no emulated networks here: {obstacle()}")
        began = time.monotonic()
        until = math.inf if arguments.minutes is None else began + 60 * arguments.minutes - apart_s
        with Devices(folder / "logs", packet) as devices:
            measurement = Measurement(folder, devices, communication)
            measurement.all(
                missing, until, lambda text: print(f"{time.monotonic() - began:5.0f} s  {text}", flush=True)
            )
    if not arguments.page and not arguments.only:
        for stem, record in published.items():
            file = folder / f"{stem}.json"
            if "cell" not in record and not file.is_file():
                file.write_text(json.dumps(record), encoding="utf-8")  # It goes on from these.
        apart(folder, arguments.quick or arguments.minutes is not None)
    if folder == kept and not arguments.only:
        fill(name, figures, {**published, **Records.of(folder).found})


def fill(page: str, figures: Figures, found: Mapping[str, Record], pages: Path = PAGES) -> None:
    """Write ``<page>.md`` anew from records by name, and these beside it. Raises ValueError for an unknown figure."""
    file = pages / f"{page}.md"
    text, records = file.read_text(encoding="utf-8"), Records(dict(found))
    unknown = [name for name in names(text) if name not in figures]
    if unknown:
        raise ValueError(f"{file.name} wants figures that nobody makes: {', '.join(unknown)}")
    file.write_text(filled(text, lambda name: figures[name](records)), encoding="utf-8")
    (pages / f"{page}-records.jsonl").write_text(records.lines(), encoding="utf-8")
