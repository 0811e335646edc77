"""``python -m bench.hat``: the HAT paper's evaluation, every method side by side on a testbed of this machine.

    PYTHONPATH=tests python -m bench.hat --list
    PYTHONPATH=tests python -m bench.hat --only rates --only single --setting demo

The headline is measured three times, every sweep once. What is measured already is kept: after an interruption the same
command goes on where it was. With ``--published`` it goes on from the records of the published page, which another
machine may have measured. The page goes to docs/results where nothing that is planned is missing, else to
build/bench-hat/page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn

import click
from bench.hat.cells import Cell, all_cells
from bench.hat.measure import calibrated, link_of, measure, processes_of
from bench.hat.page import DOCS, RECORDS, write
from bench.hat.plan import grouped, predicted_s
from bench.hat.records import BadRecord, Record, load, parse, put, unpack
from bench.hat.serving import Serving
from bench.hat.setups import Setup, setup
from bench.page import ROOT
from bench.testbed.possible import NotPossible, check_possible
from tqdm import tqdm

CACHE: Final = ROOT / "build" / "bench-hat"


def missing(cells: Iterable[Cell], folder: Path) -> list[Cell]:
    """Those that have no record yet, or under their name one of other requests, or none that can be read."""
    found = ((cell, _recorded(folder / f"{cell.name}.json")) for cell in cells)
    return [cell for cell, record in found if record is None or record.cell != cell]


def _recorded(file: Path) -> Record | None:
    try:
        return parse(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


def run(cells: Sequence[Cell], records: Path, setups: dict[str, Setup]) -> list[str]:
    """Measure cells, all that need the same processes together within a repeat; what went wrong, of each that failed.

    One that fails ends those that were to follow on its processes, and no others.
    """
    failures = []
    with tqdm(total=sum(cell.requests for cell in cells), unit="request", smoothing=0.05) as bar:
        for batch in grouped(cells):
            try:
                _together(batch, setups[batch[0].setting], records, bar)
            except (RuntimeError, OSError, ValueError) as error:
                failures.append(f"{batch[0].method} in repeat {batch[0].repeat + 1}: {error}")
                tqdm.write(failures[-1])
    return failures


def _together(cells: Sequence[Cell], setup: Setup, records: Path, bar: tqdm[NoReturn]) -> None:
    """Measure cells on the same processes, one after the other."""
    costs = calibrated(setup, CACHE, CACHE / "logs" / "calibration")
    bar.set_description("starting")
    folder = CACHE / "logs" / cells[0].method
    with Serving(setup, processes_of(cells[0], setup), folder) as serving:
        link = link_of(cells[0], setup, costs)
        serving.warm(link.up_bytes_s, link.down_bytes_s)
        for cell in cells:
            bar.set_description(f"{cell.experiment} {cell.dataset} {cell.method} {cell.repeat + 1}")
            record = measure(serving, cell, costs, lambda count: bar.update(1) and None)
            if record["machine"]["bottleneck"]:
                tqdm.write(f"{cell.name}: {record['machine']['bottleneck']}")
            if record["errors"]:
                tqdm.write(f"{cell.name}: {record['latency']['failed']} failed: {record['errors'][0]}")
            put(record, cell, records)


def planned_time(cells: Sequence[Cell]) -> str:
    """How many cells, and how long they take by what the published runs took."""
    try:
        published = load(DOCS / RECORDS)
    except (OSError, BadRecord):
        published = []
    minutes = round(predicted_s(cells, published) / 60)
    return f"{len(cells)} cells, about {minutes // 60}:{minutes % 60:02} h"


@click.command(help=(__doc__ or "").replace("\n\n    ", "\n\n\b\n    "))
@click.option("--quick", is_flag=True, help="the headline on SpecBench's lengths, once")
@click.option("--setting", "settings", multiple=True, default=("demo", "wide"), type=click.Choice(["demo", "wide"]))
@click.option("--only", multiple=True, help="an experiment; several times; all where none is named")
@click.option("--method", "methods", multiple=True, help="a method; several times; all where none is named")
@click.option("--repeats", default=0, type=click.IntRange(min=0), help="so many of every cell; 0: as planned")
@click.option("--list", "listed", is_flag=True, help="say what would be measured and for how long, and measure nothing")
@click.option("--again", is_flag=True, help="measure also what has a record")
@click.option("--published", is_flag=True, help="measure only what the published page's records lack, and add to them")
def main(
    quick: bool,
    settings: tuple[str, ...],
    only: tuple[str, ...],
    methods: tuple[str, ...],
    repeats: int,
    listed: bool,
    again: bool,
    published: bool,
) -> None:
    """Measure what is missing, and fill the page."""
    records = CACHE / "records"
    if published:
        records.mkdir(parents=True, exist_ok=True)
        try:
            click.echo(f"{unpack(DOCS / RECORDS, records)} published records taken over.")
        except (OSError, BadRecord) as error:
            sys.exit(f"Nothing can be added to what is published: {error}")
    cells = [
        cell
        for cell in all_cells(quick, settings, repeats)
        if (not only or cell.experiment in only) and (not methods or cell.method in methods)
    ]
    left = cells if again else missing(cells, records)
    click.echo(f"Planned: {planned_time(cells)}. To be measured: {planned_time(left)}.")
    if listed:
        for cell in left:
            click.echo(f"  {cell.name}{' (headline)' * cell.headline}")
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
        whole = not missing(all_cells(), records)
        click.echo(f"See {write(records, DOCS if whole else CACHE / 'page')}")
    except BadRecord as error:
        sys.exit(f"No page: {error}")
    if failures:
        sys.exit("Not measured; the same command tries again: " + "; ".join(failures))


if __name__ == "__main__":
    main(prog_name="python -m bench.hat")
