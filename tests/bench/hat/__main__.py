"""``python -m bench.hat``: the HAT paper's evaluation, every method side by side on a testbed of this machine.

    PYTHONPATH=tests python -m bench.hat --quick
    PYTHONPATH=tests python -m bench.hat --only rates --only single --setting demo

What is measured already is kept: after an interruption the same command goes on where it was. With ``--published`` it
goes on from the records of the published page, which another machine may have measured. Without it, the page of fewer
runs than are published goes to build/bench-hat/page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, NoReturn

import click
from bench.hat.cells import RIVALS, Cell, all_cells
from bench.hat.llama import measure_llama
from bench.hat.llama_split import LlamaSplit, unavailable
from bench.hat.measure import calibrated, link_of, measure, processes_of
from bench.hat.page import DOCS, RECORDS, write
from bench.hat.records import BadRecord, Record, lacking, parse, put, unpack
from bench.hat.serving import Processes, Serving
from bench.hat.setups import Setup, setup
from bench.page import ROOT
from bench.testbed.possible import NotPossible, check_possible
from tqdm import tqdm

CACHE: Final = ROOT / "build" / "bench-hat"


def missing(cells: Sequence[Cell], folder: Path, short: bool = False) -> list[Cell]:
    """Those that have no record yet, or under their name one of other requests, or none that can be read.

    short: also those in whose run the machine itself was short of something.
    """
    found = ((cell, _recorded(folder / f"{cell.name}.json")) for cell in cells)
    return [cell for cell, record in found if not record or record.cell != cell or (short and record.bottleneck)]


def page_folder(records: Path, quick: bool) -> Path:
    """Where the page of these records goes: what is published is replaced only by what has all of it. Raises
    BadRecord."""
    if quick:
        return CACHE / "page"
    if lost := lacking(records, DOCS / RECORDS):
        click.echo(f"{lost} published runs are not in {records}: what is published stays (--published adds to it).")
    return CACHE / "page" if lost else DOCS


def _recorded(file: Path) -> Record | None:
    try:
        return parse(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


def run(cells: Sequence[Cell], records: Path, setups: dict[str, Setup]) -> list[str]:
    """Measure cells, all that need the same processes together within a repeat; what went wrong, of each that failed.

    One that fails ends those that were to follow on its processes, and no others.
    """
    order = {key: number for number, key in enumerate(dict.fromkeys((c.repeat, _processes(c, setups)) for c in cells))}
    cells = sorted(cells, key=lambda cell: order[cell.repeat, _processes(cell, setups)])
    failures = []
    with tqdm(total=sum(cell.requests for cell in cells), unit="request", smoothing=0.05) as bar:
        for (_, name, processes), together in groupby(cells, lambda cell: (cell.repeat, *_processes(cell, setups))):
            batch = list(together)
            try:
                _together(batch, setups[name], processes, records, bar)
            except (RuntimeError, OSError, ValueError) as error:
                failures.append(f"{batch[0].method} in repeat {batch[0].repeat + 1}: {error}")
                tqdm.write(failures[-1])
    return failures


def _together(
    cells: Sequence[Cell], setup: Setup, processes: Processes | None, records: Path, bar: tqdm[NoReturn]
) -> None:
    """Measure cells on the same processes, one after the other."""
    costs = calibrated(setup, CACHE, CACHE / "logs" / "calibration")
    bar.set_description("starting")
    folder = CACHE / "logs" / cells[0].method
    with ExitStack() as stack:
        if processes is None:
            split = stack.enter_context(LlamaSplit(setup, folder))
            split.warm()
            measured = partial(measure_llama, split)
        else:
            serving = stack.enter_context(Serving(setup, processes, folder))
            link = link_of(cells[0], setup, costs)
            serving.warm(link.up_bytes_s, link.down_bytes_s)
            measured = partial(measure, serving)
        for cell in cells:
            bar.set_description(f"{cell.experiment} {cell.dataset} {cell.method} {cell.repeat + 1}")
            record = measured(cell, costs, lambda count: bar.update(1) and None)
            if record["machine"]["bottleneck"]:
                tqdm.write(f"{cell.name}: {record['machine']['bottleneck']}")
            if record["errors"]:
                tqdm.write(f"{cell.name}: {record['latency']['failed']} failed: {record['errors'][0]}")
            put(record, cell, records)


def _processes(cell: Cell, setups: dict[str, Setup]) -> tuple[str, Processes | None]:
    return cell.setting, None if cell.method in RIVALS else processes_of(cell, setups[cell.setting])


@click.command(help=(__doc__ or "").replace("\n\n    ", "\n\n\b\n    "))
@click.option("--quick", is_flag=True, help="one repeat of the middle rates; the page goes to build/")
@click.option("--setting", "settings", multiple=True, default=("demo", "wide"), type=click.Choice(["demo", "wide"]))
@click.option("--only", multiple=True, help="an experiment; several times; all where none is named")
@click.option("--method", "methods", multiple=True, help="a method; several times; all where none is named")
@click.option("--repeats", default=0, type=click.IntRange(min=0), help="so many; 0: three, or with --quick one")
@click.option("--list", "listed", is_flag=True, help="say what would be measured, and measure nothing")
@click.option("--again", is_flag=True, help="measure also what has a record")
@click.option("--short", is_flag=True, help="measure also what was measured while the machine itself was short")
@click.option("--published", is_flag=True, help="measure only what the published page's records lack, and add to them")
def main(
    quick: bool,
    settings: tuple[str, ...],
    only: tuple[str, ...],
    methods: tuple[str, ...],
    repeats: int,
    listed: bool,
    again: bool,
    short: bool,
    published: bool,
) -> None:
    """Measure what is missing, and write the page."""
    records = CACHE / ("quick" if quick else "records")
    if published:
        records.mkdir(parents=True, exist_ok=True)
        try:
            click.echo(f"{unpack(DOCS / RECORDS, records)} published records taken over.")
        except (OSError, BadRecord) as error:
            sys.exit(f"Nothing can be added to what is published: {error}")
    cells = [
        cell
        for cell in all_cells(quick, settings, rivals=True, repeats=repeats)
        if (not only or cell.experiment in only) and (not methods or cell.method in methods)
    ]
    left = cells if again else missing(cells, records, short)
    if any(cell.method in RIVALS for cell in left) and (reason := unavailable()):
        click.echo(f"Without {', '.join(RIVALS)}: {reason}")
        left = [cell for cell in left if cell.method not in RIVALS]
    click.echo(f"{len(cells)} cells, {len(left)} of them to be measured.")
    if listed:
        for cell in left:
            click.echo(f"  {cell.name}")
        return
    try:
        check_possible()
    except NotPossible as reason:
        sys.exit(f"No testbed here: {reason}")
    records.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    if left:
        setups = {name: setup(name, CACHE) for name in dict.fromkeys(cell.setting for cell in left)}
        failures = run(left, records, setups)
    try:
        page = write(records, page_folder(records, quick))
    except BadRecord as error:
        sys.exit(f"No page: {error}")
    click.echo(f"See {page}")
    if failures:
        sys.exit("Not measured; the same command tries again: " + "; ".join(failures))


if __name__ == "__main__":
    main(prog_name="python -m bench.hat")
