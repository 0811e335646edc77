"""The plots that pages show: delays against the rate of requests, and where the time went at the middle rate."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.hat.looks import DATASETS, SETTINGS, look, ordered
from bench.hat.summary import TBT, TTFT, Measured
from bench.hat.tables import spent
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

DELAYS = {"TTFT": TTFT, "TBT": TBT}
COLOURS = 128
"""Colours of a PNG: enough for smooth edges, and a third of the bytes."""

PART_COLOURS = ("#DDCC77", "#332288", "#CC6677", "#44AA99", "#BBBBBB")


def draw(measured: Measured, name: str, folder: Path) -> None:
    """``SETTING-DATASET-KIND.png`` in a folder. No date is in it: the same figures, the same bytes.

    Raises KeyError where there is no such kind.
    """
    setting, dataset, kind = name.removesuffix(".png").split("-")
    figure = Figure(figsize=(9.0, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for place, (delay, number) in enumerate(DELAYS.items(), 1):
        panel = figure.add_subplot(1, 2, place)
        panel.grid(color="#E4E4E4", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        PLOTS[kind](panel, measured, (setting, dataset), number)
        panel.set_title(f"{delay}, mean of requests, ms", loc="left", fontsize=10)
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(f"{DATASETS[dataset]}, {SETTINGS[setting]}", fontsize=12, x=0.01, ha="left")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", metadata={"Software": None})
    folder.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(folder / name, optimize=True)


def _rates(panel: Axes, measured: Measured, at: tuple[str, str], number: str) -> None:
    """Medians with their spread, a line for each method."""
    places = measured.select(experiment="rates", setting=at[0], dataset=at[1])
    for method in ordered(each.method for each in places):
        found = [(each.rate, measured.spread(each, number)) for each in sorted(places) if each.method == method]
        known = [(rate, spread.line(1e3)) for rate, spread in found if spread is not None]
        style = look(method)
        panel.errorbar(
            [rate for rate, _ in known],
            [spread.median for _, spread in known],
            yerr=[[s.median - s.low for _, s in known], [s.high - s.median for _, s in known]],
            color=style.colour, marker=style.marker, linestyle=style.dash, label=style.label, markersize=6,
            linewidth=1.6, capsize=3, elinewidth=1.0,
        )  # fmt: skip
    panel.set_xlabel("requests/s")
    panel.set_xticks(sorted({each.rate for each in places}))
    panel.set_ylim(bottom=0)


def _parts(panel: Axes, measured: Measured, at: tuple[str, str], number: str) -> None:
    """A bar for each method, of the parts of its delay."""
    here = measured.middle(*at)
    known = {method: found for method in ordered(here) if (found := spent(measured, here[method], number))}
    left = dict.fromkeys(known, 0.0)
    names = list(next(iter(known.values())).parts) if known else []
    for part, colour in zip(names, PART_COLOURS, strict=False):
        widths = {method: max(0.0, 1e3 * found.parts[part]) for method, found in known.items()}
        panel.barh(
            [look(method).label for method in known], list(widths.values()), left=list(left.values()), color=colour,
            label=part, height=0.7,
        )  # fmt: skip
        left = {method: left[method] + width for method, width in widths.items()}
    panel.invert_yaxis()


PLOTS: Mapping[str, Callable[[Axes, Measured, tuple[str, str], str], None]] = {"rates": _rates, "parts": _parts}
