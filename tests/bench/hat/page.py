"""Fills the figures of docs/results/hat.md and the pages in docs/results/hat: `python -m bench.hat.page RECORDS`.

The pages are written by hand. Nothing is measured here, so the figures can be made anew at any time.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import click
from bench.hat.plots import draw
from bench.hat.records import BadRecord, Record, load, packed, parse, planned
from bench.hat.summaries import figures
from bench.hat.summary import Measured
from bench.hat.tables import gains, made
from bench.page import ROOT, filled

DOCS = ROOT / "docs" / "results"
RECORDS = "hat-records.jsonl"
"""Beside the page: what it was made of, one record a line."""

_PICTURE = re.compile(r"\]\((?:hat/)?([^)/]+\.png)\)")


def pages(docs: Path) -> list[Path]:
    """The first page, and those that it links to."""
    return [docs / "hat.md", *sorted((docs / "hat").glob("*.md"))]


class Figures:
    """What stands between markers: of everything (``headline``), or of a setting and a data set (``rates demo cnndm``).

    Nothing that has no records says so.
    """

    def __init__(self, records: list[Record]) -> None:
        self.measured = Measured(records)
        self._whole = figures(self.measured)

    def __call__(self, name: str) -> str:
        """Raises KeyError where there are no such figures."""
        if name in self._whole:
            return self._whole[name]
        kind, setting, dataset = name.split(" ")
        if kind == "gains":
            return gains(self.measured, setting, dataset)
        return made(self.measured, kind, setting, dataset) or "*Not measured.*"


def write(source: Path, docs: Path = DOCS) -> Path:
    """Fill the pages in ``docs``, which begin as copies of the published ones where there are none, draw the plots that
    they show, and put the records beside them.

    Raises:
        BadRecord: there are none, none of a planned cell, or broken ones.
    """
    lines = packed(source, planned(load(source)))
    made_of = Figures([parse(json.loads(line)) for line in lines.splitlines()])
    for page in pages(DOCS):
        here = docs / page.relative_to(DOCS)
        here.parent.mkdir(parents=True, exist_ok=True)
        if not here.exists():
            shutil.copy(page, here)
        text = filled(here.read_text(encoding="utf-8"), made_of)
        here.write_text(text, encoding="utf-8")
        for name in _PICTURE.findall(text):
            draw(made_of.measured, name, docs / "hat")
    (docs / RECORDS).write_text(lines, encoding="utf-8")
    return docs / "hat.md"


@click.command()
@click.argument("records", type=click.Path(exists=True, path_type=Path), default=DOCS / RECORDS)
@click.option("--docs", type=click.Path(file_okay=False, path_type=Path), default=DOCS, show_default="docs/results")
def main(records: Path, docs: Path) -> None:
    """Fill the pages from RECORDS, a folder of them or a file with one on each line.

    Example: python -m bench.hat.page build/bench-hat/records
    """
    try:
        click.echo(f"Wrote {write(records, docs)}.")
    except BadRecord as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
