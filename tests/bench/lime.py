"""LIME's evaluation: models larger than the memory of some devices together, on emulated devices, disks and links.

    make bench-lime [ARGS="--quick"]

As root, with iproute2 and util-linux. What was measured stays, so that a further run goes on where this one ends.
"""

from __future__ import annotations

import argparse
import time

from bench.page import ROOT
from bench.streamed.cases import planned
from bench.streamed.measure import Measurement
from bench.streamed.methods import METHODS
from bench.streamed.page import Records, fill, missing
from bench.testbed.own_disk import disk_obstacle
from bench.testbed.possible import obstacle

FOLDER = ROOT / "build" / "bench-lime"
PAGE = ROOT / "docs" / "results" / "lime.md"


def main() -> None:
    """Measure what has no record, then fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two settings at one bandwidth, fewer tokens")
    parser.add_argument("--list", action="store_true", help="what is to be measured")
    parser.add_argument("--minutes", type=float, default=180.0, help="begin nothing after so many")
    parser.add_argument("--only", default="", help="cells whose names contain this; no page then")
    arguments = parser.parse_args()
    cells = [cell for cell in planned(list(METHODS), arguments.quick) if arguments.only in cell.name]
    todo = missing(cells, FOLDER)
    if arguments.list:
        for cell in todo:
            print(cell.name)
        return
    if todo and (obstacle() or disk_obstacle()):
        raise SystemExit(f"no emulated devices here: {obstacle() or disk_obstacle()}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    measurement = Measurement(FOLDER, lambda text: print(f"{time.monotonic() - began:5.0f} s  {text}", flush=True))
    measurement.all(todo, began + arguments.minutes * 60)
    if not arguments.only:
        fill(Records(FOLDER), PAGE)


if __name__ == "__main__":
    main()
