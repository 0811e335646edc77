"""LIME's evaluation: models larger than the memory of some devices together, on emulated devices, disks and links.

    make bench-lime [ARGS="--quick"]

As root, with iproute2 and util-linux. What was measured stays, so that a further run goes on where this one ends.
"""

from __future__ import annotations

import argparse
import time

from bench.page import ROOT
from bench.streamed.cases import ALONE, planned
from bench.streamed.measure import Measurement
from bench.streamed.page import fill
from bench.streamed.records import Records, missing, pack, predicted_s, unpack
from bench.testbed.own_disk import disk_obstacle
from bench.testbed.possible import obstacle

FOLDER = ROOT / "build" / "bench-lime"
PAGE = ROOT / "docs" / "results" / "lime.md"
RECORDS = PAGE.with_name("lime-records.jsonl")


def main() -> None:
    """Measure what has no record, then fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less of it, fewer tokens; no page then")
    parser.add_argument("--list", action="store_true", help="what is to be measured, and for how long")
    parser.add_argument("--minutes", type=float, default=180.0, help="begin nothing after so many")
    parser.add_argument("--only", default="", help="cells whose names contain this; no page then")
    parser.add_argument("--published", action="store_true", help="go on from the published page's records")
    parser.add_argument("--accelerate", metavar="PYTHON", default="", help="an interpreter with accelerate, and ours")
    parser.add_argument("--llama", metavar="PYTHON", default="", help="one with llama-cpp-python and gguf")
    arguments = parser.parse_args()
    folder = FOLDER / "quick" if arguments.quick else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.published:
        print(f"{unpack(RECORDS, folder)} published records taken over.")
    pythons = dict(zip(ALONE, (arguments.accelerate, arguments.llama), strict=True))
    everything = planned(arguments.quick)
    cells = [cell for cell in everything if arguments.only in cell.name and pythons.get(cell.method, "always")]
    todo, before = missing(cells, folder), Records(folder)
    print(f"{len(todo)} of {len(cells)} cells are to be measured: about {predicted_s(todo, before) / 60:.0f} minutes")
    if arguments.list:
        for cell in todo:
            print(cell.name)
        return
    if todo and (obstacle() or disk_obstacle()):
        raise SystemExit(f"no emulated devices here: {obstacle() or disk_obstacle()}")
    began = time.monotonic()
    say = lambda text: print(f"{time.monotonic() - began:5.0f} s  {text}", flush=True)  # noqa: E731
    Measurement(folder, say, pythons).all(todo, began + arguments.minutes * 60)
    if not arguments.only and not arguments.quick:
        records = Records(folder)
        fill(records, PAGE)
        pack(records, everything, RECORDS)
    print(f"{len(missing(cells, folder))} cells are left")


if __name__ == "__main__":
    main()
