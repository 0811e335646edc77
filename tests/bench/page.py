"""Figures for pages that are written by hand: each between ``<!-- figures: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
_MARKED = re.compile(r"(<!-- figures: ([^\n]+?) -->)(\n?).*?(<!-- end -->)", re.DOTALL)


def names(text: str) -> list[str]:
    """Of the figures that a page shows, in their order."""
    return [found[2] for found in _MARKED.finditer(text)]


def filled(text: str, figures: Callable[[str], str | None]) -> str:
    """A page with what ``figures`` has for each name, within its line or on lines of its own as the markers stand;
    ``None`` leaves what is there."""

    def replaced(found: re.Match[str]) -> str:
        made = figures(found[2])
        return found[0] if made is None else f"{found[1]}{found[3]}{made.strip()}{found[3]}{found[4]}"

    return _MARKED.sub(replaced, text)


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Put figures into docs/benchmarks.md. Raises ValueError where it has no place for them."""
    there = page.read_text(encoding="utf-8")
    if name not in names(there):
        raise ValueError(f"{page.name} has no figures {name}")
    page.write_text(filled(there, lambda each: text if each == name else None), encoding="utf-8")


def table(head: str | Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; its head as cells, or as ``one | other``."""
    cells = head.split(" | ") if isinstance(head, str) else head
    return "\n".join(f"| {' | '.join(line)} |" for line in (cells, ["---"] * len(cells), *rows))


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
