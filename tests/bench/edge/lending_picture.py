"""The page's picture: where lending pays, and which device computes which heads of each layer (EdgeFormer, Fig. 9)."""

from __future__ import annotations

from math import log10
from pathlib import Path

from bench.edge.cells import Cell
from bench.edge.foreseen import OURS, PAPERS, RATIOS, ROWS, points
from bench.edge.methods import METHODS
from bench.edge.records import Records
from bench.streamed.plots import figure, save
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

COLOURS = {"neither": "#DDDDDD", "attention": "#DDCC77", "projections": "#44AA99"}
DEVICES = ("#CC6677", "#4477AA", "#DDAA33")
"""As in the paper: 20, 13 and 7 TFLOPS."""

SHAPE = "half-gpt2-l"
SHOWN = tuple(Cell("20-13-7", "half-opt-1.3b", method, 3, 400.0) for method in ("lending", "edgeformer-paper"))


def draw(records: Records, folder: Path) -> None:
    """``lending.png``: the same figures, the same bytes."""
    drawn = figure(11.0, 3.8)
    _map(drawn.add_subplot(1, 3, 1))
    for place, cell in enumerate(SHOWN, 2):
        _heads(drawn.add_subplot(1, 3, place), records, cell)
    save(drawn, folder / "lending.png")


def _map(panel: Axes) -> None:
    found = points(SHAPE)
    kinds = [[list(COLOURS).index(at.best) for at in line] for line in found]
    panel.imshow(kinds, ListedColormap([*COLOURS.values()]), vmin=0, vmax=2, origin="lower", aspect="auto")
    for y, line in enumerate(found):
        for x, at in enumerate(line):
            gain = f"{max(at.attention, at.projections):.2f}" if at.best != "neither" else ""
            panel.text(x, y, gain, ha="center", va="center", fontsize=7)
    panel.set_xticks(range(len(ROWS)), [f"{rows}" for rows in ROWS], fontsize=7)
    panel.set_yticks(range(len(RATIOS)), [f"{ratio:.0e}" for ratio in RATIOS], fontsize=7)
    for ratio, word in ((PAPERS, "the paper's"), (OURS, "here")):
        at_y = log10(ratio / RATIOS[0])
        panel.axhline(at_y, color="#333333", linestyle=":", linewidth=1)
        panel.text(-0.45, at_y, word, fontsize=7, va="bottom")
    panel.set_title(
        "foreseen: bytes per operation over rows, where lending\nattention (yellow) or projections (green) pays",
        loc="left",
        fontsize=8,
    )


def _heads(panel: Axes, records: Records, cell: Cell) -> None:
    layers = (records.get(cell) or {}).get("heads") or []
    for device, colour in enumerate(DEVICES):
        begin = [sum(each[:device]) for each in layers]
        panel.bar(range(1, len(layers) + 1), [each[device] for each in layers], bottom=begin, color=colour, width=0.9)
    title = f"{METHODS[cell.method][0]}: heads of each layer,\n20 : 13 : 7 (red, blue, yellow)"
    panel.set_title(title, loc="left", fontsize=8)
    if not layers:
        panel.set_axis_off()
        panel.text(0.5, 0.5, "not measured yet", ha="center", transform=panel.transAxes, fontsize=8)
