"""Fills a page's figures from records: what was not measured stays a dash, and the page says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bench.edge.plots import Lines, draw
from bench.edge.records import Records
from bench.page import ROOT, filled, names

PAGES = ROOT / "docs" / "results"


def picture(file: str, panels: Mapping[str, Lines], across: str, up: str) -> str:
    """Draw what was measured, and show it; a panel needs two points of a method."""
    known: dict[str, Lines] = {}
    for title, lines in panels.items():
        if drawn := {method: points for method, points in lines.items() if len(points) > 1}:
            known[title] = drawn
    if not known:
        return "*Not measured yet.*"
    draw(known, across, up, PAGES / file)
    return f"![{up}, by {across}]({file})"


def fill(page: str, figures: Mapping[str, Callable[[Records], str]], folder: Path) -> None:
    """Write ``docs/results/<page>.md`` anew from a folder of records. Raises ValueError for an unknown figure."""
    file = PAGES / f"{page}.md"
    text, records = file.read_text(encoding="utf-8"), Records.of(folder)
    unknown = [name for name in names(text) if name not in figures]
    if unknown:
        raise ValueError(f"{file.name} wants figures that nobody makes: {', '.join(unknown)}")
    file.write_text(filled(text, lambda name: figures[name](records)), encoding="utf-8")
