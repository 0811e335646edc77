"""The page's pictures: a group of bars for each row, and tokens over time while bandwidths change."""

from __future__ import annotations

import io
from pathlib import Path

from bench.streamed.cases import MODELS, SETTINGS
from bench.streamed.methods import METHODS
from bench.streamed.records import Records, token_s
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

SHOWN = {
    "lime": "#332288",
    "tpi-llm": "#DDCC77",
    "galaxy-offloaded": "#CC6677",
    "offloaded": "#44AA99",
    "no-prefetch": "#88CCEE",
    "edgeshard-offloaded": "#AA4499",
    "edgeshard": "#999933",
    "galaxy": "#882255",
    "pipeline": "#117733",
}
"""Methods with a bar, and its colour."""

MBIT = 100.0
COLOURS = 128


def draw(records: Records, folder: Path) -> None:
    """``bars.png`` and ``varied.png``. No date is in them: the same figures, the same bytes."""
    bars = figure(11.0, 6.4)
    for place, bursty in enumerate((False, True), 1):
        _bars(bars.add_subplot(2, 1, place), records, bursty)
    handles, labels = bars.axes[0].get_legend_handles_labels()
    bars.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    save(bars, folder / "bars.png")
    varied = figure(9.0, 3.6)
    _varied(varied.add_subplot(1, 1, 1), records)
    save(varied, folder / "varied.png")


def _bars(panel: Axes, records: Records, bursty: bool) -> None:
    """Milliseconds a token; x: what does not run."""
    rows = [row for row in records.rows() if row[3] == MBIT and (row[2] > 1) == bursty]
    width = 0.9 / len(SHOWN)
    for number, (method, colour) in enumerate(SHOWN.items()):
        at = [place + (number - len(SHOWN) / 2 + 0.5) * width for place in range(len(rows))]
        times = [token_s(records.of(row, method)) for row in rows]
        panel.bar(at, [(seconds or 0.0) * 1e3 for seconds in times], width, color=colour, label=METHODS[method].title)
        for where, row, seconds in zip(at, rows, times, strict=True):
            if seconds is None and records.of(row, method):
                panel.text(where, 1.0, "×", ha="center", va="bottom", fontsize=8, color=colour)
    panel.set_yscale("log")
    panel.set_ylim(bottom=1.0)
    panel.set_xticks(
        range(len(rows)), [f"{MODELS[row[0]].title}\n{SETTINGS[row[1]].title}" for row in rows], fontsize=8
    )
    title = "bursty" if bursty else "sporadic"
    panel.set_title(f"{title}, {MBIT:g} Mb/s: ms a token (×: out of memory or of time)", loc="left", fontsize=10)


def _varied(panel: Axes, records: Records) -> None:
    """When each step was done, and what the links were meanwhile."""
    found = [record for record in records.found if record["vary"] and not record["refused"]]
    for record in found:
        steps = record["steps_s"]
        took = [1e3 * (end - begin) for begin, end in zip([0.0, *steps], steps, strict=False)]
        colour = SHOWN.get(record["method"], "#333333")
        panel.step(steps, took, color=colour, label=METHODS[record["method"]].title, where="pre")
    panel.set_xlabel("s")
    panel.set_title("ms a step of five sessions; dotted: Mb/s (right)", loc="left", fontsize=10)
    panel.set_ylim(bottom=0)
    if not found:
        return
    panel.legend(fontsize=8, frameon=False)
    links = panel.twinx()
    longest = max(found, key=lambda record: len(record["steps_s"]))
    links.step(longest["steps_s"], longest["mbits"][: len(longest["steps_s"])], color="#999999", linestyle=":")
    links.set_ylim(0, 300)


def figure(width: float, height: float) -> Figure:
    """Without panels yet; inches."""
    made = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(made)
    return made


def save(made: Figure, file: Path) -> None:
    """As a PNG with few colours and no date."""
    for panel in made.axes:
        panel.spines[["top"]].set_visible(False)
    drawn = io.BytesIO()
    made.savefig(drawn, format="png", metadata={"Software": None})
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(file, optimize=True)
