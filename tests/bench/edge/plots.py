"""Lines of pages' figures: a panel for each shape or environment, a line for each method."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.edge.methods import METHODS
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

COLOURS = 128
"""Of a PNG: enough for smooth edges, and a third of the bytes."""

LOOKS = {
    "voltage": ("#D55E00", "o"),
    "joint": ("#D55E00", "o"),
    "voltage-paper": ("#E69F00", "s"),
    "galaxy-plus": ("#E69F00", "s"),
    "tensor": ("#0072B2", "D"),
    "sequence": ("#009E73", "P"),
    "edgeshard": ("#8A8A8A", "^"),
    "galaxy": ("#CC79A7", "X"),
}
"""Okabe and Ito's colours, and a marker for who sees few of them."""

Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Of each method: points."""


def draw(panels: Mapping[str, Lines], across: str, up: str, file: Path) -> None:
    """A panel for each title. No date is in it: the same figures, the same bytes."""
    figure = Figure(figsize=(4.2 * len(panels), 3.8), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    for place, (title, lines) in enumerate(panels.items(), 1):
        panel = figure.add_subplot(1, len(panels), place)
        panel.grid(color="#E4E4E4", linewidth=0.7)
        panel.spines[["top", "right"]].set_visible(False)
        panel.axhline(1.0, color="#000000", linewidth=1.0, linestyle=":")
        for method, points in lines.items():
            colour, marker = LOOKS[method]
            panel.plot(*zip(*points, strict=True), color=colour, marker=marker, label=METHODS[method][0])
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_xlabel(across)
        panel.set_ylabel(up)
        panel.set_ylim(bottom=0)
    known = [panel.get_legend_handles_labels() for panel in figure.axes]
    labels = {label: line for lines, names in known for line, label in zip(lines, names, strict=True)}
    figure.legend(labels.values(), labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", metadata={"Software": None})
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(file, optimize=True)
