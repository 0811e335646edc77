"""Panels to draw on, and how they become small PNGs."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.hat.looks import look
from bench.hat.summary import Spread
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

Panel = Axes
DPI, WIDE, HIGH = 110, 9.0, 4.2
COLOURS = 128
"""Colours of a PNG: enough for smooth edges, and a third of the bytes."""

STYLE: Mapping[str, Any] = {"markersize": 6, "linewidth": 1.6, "capsize": 3, "elinewidth": 1.0}


def panels(count: int) -> tuple[Figure, list[Panel]]:
    """A figure with so many panels side by side."""
    figure = Figure(figsize=(WIDE, HIGH), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    found = [figure.add_subplot(1, count, place + 1) for place in range(count)]
    for panel in found:
        panel.grid(color="#E4E4E4", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.title.set_fontsize(10)
    return figure, found


def legend(figure: Figure, panel: Panel, columns: int = 5) -> None:
    """Below all panels, each label once."""
    once = {str(label): handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    if once:
        figure.legend(
            list(once.values()), list(once), loc="outside lower center", ncols=columns, fontsize=8, frameon=False
        )


def bars_of(panel: Panel, groups: Sequence[str], bars: Mapping[str, Sequence[Spread | None]]) -> None:
    """A group of bars for each of ``groups``, one for each method that was measured there, with its spread."""
    wide = 0.8 / max(1, len(bars))
    for number, (method, found) in enumerate(bars.items()):
        known = [(place, each) for place, each in enumerate(found) if each is not None]
        panel.bar(
            [place - 0.4 + wide * (number + 0.5) for place, _ in known],
            [each.median for _, each in known],
            wide * 0.92,
            yerr=[[each.median - each.low for _, each in known], [each.high - each.median for _, each in known]],
            color=look(method).colour,
            ecolor="#555555",
            capsize=2,
            label=look(method).label,
        )
    panel.set_xticks(range(len(groups)), groups)


def save(figure: Figure, file: Path, title: str, legend_of: Panel | None, anything: bool) -> bool:
    """Write it, unless there is nothing on it, and say which. No date is in it: the same figures, the same bytes."""
    if not anything:
        return False
    if legend_of is not None:
        legend(figure, legend_of)
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(file, optimize=True)
    return True
