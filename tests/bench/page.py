"""Puts a generated section into docs/benchmarks.md, between its markers, and leaves the rest alone."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"


def write_section(name: str, text: str) -> None:
    """Replace section ``name`` of the page.

    Raises:
        ValueError: the page has no such section.
    """
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    if begin not in page or end not in page:
        raise ValueError(f"{PAGE.name} has no section {name}")
    head, rest = page.split(begin, 1)
    PAGE.write_text(head + begin + text.rstrip() + "\n" + end + rest.split(end, 1)[1], encoding="utf-8")


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def machine() -> str:
    """What this was measured on, in one line."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo().splitlines() if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {date.today().isoformat()}"


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8") if path.exists() else ""
