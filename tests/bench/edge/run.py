"""Measures what a bench has planned and has no record of yet, then fills its page."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.edge.cells import Cell
from bench.edge.groups import Devices
from bench.edge.measure import Communication, Measurement
from bench.page import ROOT
from bench.testbed.possible import obstacle


def run(
    name: str,
    about: str,
    cells: Callable[[bool], Iterator[Cell]],
    communication: Communication,
    fill: Callable[[Path], None],
    apart: Callable[[Path, bool], None],
    apart_s: float,
    packet: int,
) -> None:
    """The command line of a bench.

    fill: makes the page of a folder of records.

    apart: measures what is no cell, where that has no record yet; about so many seconds of it.

    packet: bytes; see ``Devices``.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the headline rows alone, once")
    parser.add_argument("--minutes", type=float, help="as much as fits, the headline first; a later run goes on")
    parser.add_argument("--list", action="store_true", help="what is planned, and what of it has a record")
    parser.add_argument("--only", default="", help="cells whose names contain this")
    parser.add_argument("--page", action="store_true", help="fill the page from what there is, and measure nothing")
    kept = ROOT / "build" / f"bench-{name}"
    parser.add_argument("--records", type=Path, default=kept, help="another folder for records; no page then")
    arguments = parser.parse_args()
    planned = [cell for cell in dict.fromkeys(cells(arguments.quick)) if arguments.only in cell.name]
    if arguments.list:
        for cell in planned:
            print("   " if (arguments.records / f"{cell.name}.json").is_file() else "to do", cell.name)
        return
    missing = [cell for cell in planned if not (arguments.records / f"{cell.name}.json").is_file()]
    if missing and not arguments.page:
        if obstacle():
            raise SystemExit(f"no emulated networks here: {obstacle()}")
        began = time.monotonic()
        until = math.inf if arguments.minutes is None else began + 60 * arguments.minutes - apart_s
        with Devices(arguments.records / "logs", packet) as devices:
            measurement = Measurement(arguments.records, devices, communication)
            measurement.all(
                planned, until, lambda text: print(f"{time.monotonic() - began:5.0f} s  {text}", flush=True)
            )
    if not arguments.page and not arguments.only:
        apart(arguments.records, arguments.quick or arguments.minutes is not None)
    if arguments.records == kept:
        fill(kept)
