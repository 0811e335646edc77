"""The plots of the evaluation as PNGs: one colour and marker for a method in all of them, times on axes with units.

A title says what the figures of the plot say; it is made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.hat.canvas import STYLE, Panel, bars_of, panels, save
from bench.hat.goals import ROUND_TRIPS
from bench.hat.looks import look, ordered, place_label
from bench.hat.method_plots import parts, slas, spent_plot, steps
from bench.hat.records import Place
from bench.hat.shown import number
from bench.hat.summary import DECODE_TOKENS_S, MEANS, TBT, TTFT, Measured, Spread

Plot = Callable[[Measured, str, str, Path], bool]


def draw_all(measured: Measured, folder: Path) -> dict[tuple[str, str, str], str]:
    """Every plot there are figures for: ``SETTING-DATASET-NAME.png`` in ``folder``, by setting, data set and name."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for setting, dataset in measured.pairs():
        for name, plot in PLOTS.items():
            file = folder / f"{setting}-{dataset}-{name}.png"
            if plot(measured, setting, dataset, file):
                drawn[setting, dataset, name] = file.name
    return drawn


def _against(experiment: str, field: str, label: str) -> Plot:
    """Both delays against a number of the place."""

    def plot(measured: Measured, setting: str, dataset: str, file: Path) -> bool:
        places = measured.select(experiment=experiment, setting=setting, dataset=dataset)
        figure, (left, right) = panels(2)
        for panel, name, delay in ((left, TTFT, "TTFT"), (right, TBT, "TBT")):
            _lines(panel, measured, places, field, name, 1e3)
            panel.set_ylabel(f"{MEANS[delay]}, ms")
            panel.set_xlabel(label)
            panel.set_xticks(sorted({float(getattr(each, field)) for each in places}))
        left.set_title(says(measured, places, field, TTFT, "first token"), loc="left")
        right.set_title(says(measured, places, field, TBT, "next token"), loc="left")
        return save(figure, file, f"{place_label(setting, dataset)}: delay against {label}", left, places != [])

    return plot


def _lines(panel: Panel, measured: Measured, places: Sequence[Place], field: str, name: str, factor: float) -> None:
    for method in ordered(each.method for each in places):
        at: list[float] = []
        found: list[Spread] = []
        for place in sorted(each for each in places if each.method == method):
            if spread := measured.spread(place, name):
                at.append(float(getattr(place, field)))
                found.append(spread.line(factor))
        _line(panel, method, at, found)
    highest = [each.median for place in places if (each := measured.spread(place, name))]
    if highest and min(highest) > 0 and max(highest) / min(highest) > 12:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)


def _line(panel: Panel, method: str, at: Sequence[float], found: Sequence[Spread]) -> None:
    if not found:
        return
    style = look(method)
    panel.errorbar(
        at,
        [each.median for each in found],
        yerr=[[each.median - each.low for each in found], [each.high - each.median for each in found]],
        color=style.colour, marker=style.marker, linestyle=style.dash, label=style.label, **STYLE,
    )  # fmt: skip


def says(measured: Measured, places: Sequence[Place], field: str, name: str, what: str) -> str:
    """How far HAT is below (or above) full-download U-shape over the whole axis."""
    ratios = []
    for place in places:
        full = next(
            (p for p in places if p.method == "ushape-full" and getattr(p, field) == getattr(place, field)), None
        )
        if place.method == "hat" and full is not None and (ratio := measured.ratio(place, full, name)):
            ratios.append(ratio.below.median)
    if not ratios:
        return what
    low, high = min(ratios), max(ratios)
    if low < 0 <= high:
        return f"{what}: HAT from {number(-low, 0)} % above to {number(high, 0)} % below U-shape"
    ends = sorted(abs(each) for each in (low, high))
    span = " to ".join(dict.fromkeys(number(each, 0) for each in ends))
    return f"{what}: HAT {span} % {'above' if high < 0 else 'below'} U-shape"


def round_trips(measured: Measured, setting: str, dataset: str, file: Path) -> bool:
    """Tokens a second while decoding against the round trip, and the share that is left of a method's own at 0 ms."""
    places = measured.select(experiment="rtt", setting=setting, dataset=dataset)
    figure, (left, right) = panels(2)
    _lines(left, measured, places, "rtt_ms", DECODE_TOKENS_S, 1.0)
    left.set_ylabel("tokens/s while decoding")
    for method in ordered(each.method for each in places):
        mine = sorted(each for each in places if each.method == method)
        near = next((each for each in mine if each.rtt_ms == 0), None)
        pairs = [(each.rtt_ms, measured.ratio(each, near, DECODE_TOKENS_S)) for each in mine] if near else []
        known = [(at, ratio) for at, ratio in pairs if ratio is not None]
        _line(right, method, [at for at, _ in known], [ratio for _, ratio in known])
    right.plot(
        list(ROUND_TRIPS),
        list(ROUND_TRIPS.values()),
        "_",
        color="#D55E00",
        markersize=22,
        markeredgewidth=2,
        label="goal for HAT",
    )
    right.set_ylabel("tokens/s, of its own at 0 ms")
    right.set_ylim(bottom=0)
    for panel in (left, right):
        panel.set_xlabel("added round trip, ms")
        panel.set_xticks(sorted({each.rtt_ms for each in places}))
    left.set_title("speed", loc="left")
    right.set_title("what is left of it", loc="left")
    return save(figure, file, f"{place_label(setting, dataset)}: speed over a round trip", right, places != [])


def traces(measured: Measured, setting: str, dataset: str, file: Path) -> bool:
    """Both delays over links whose bandwidth follows a trace."""
    places = measured.select(experiment="traces", setting=setting, dataset=dataset)
    names = sorted({each.trace for each in places})
    figure, (left, right) = panels(2)
    for panel, name, delay in ((left, TTFT, "TTFT"), (right, TBT, "TBT")):
        methods = ordered(each.method for each in places)
        groups = {
            method: [
                found.line(1e3) if place and (found := measured.spread(place, name)) else None
                for trace in names
                for place in [next((p for p in places if (p.method, p.trace) == (method, trace)), None)]
            ]
            for method in methods
        }
        bars_of(panel, names, groups)
        panel.set_ylabel(f"{MEANS[delay]}, ms")
        panel.set_xlabel("bandwidth trace")
        panel.set_title(
            says(measured, places, "trace", name, "first token" if delay == "TTFT" else "next token"), loc="left"
        )
    return save(figure, file, f"{place_label(setting, dataset)}: links that change", left, places != [])


PLOTS: Mapping[str, Plot] = {
    "rates": _against("rates", "rate", "requests/s"),
    "spent": spent_plot,
    "steps": steps,
    "slas": slas,
    "stages": _against("stages", "stages", "stages of the cloud's pipeline"),
    "round-trips": round_trips,
    "traces": traces,
    "parts": parts,
}
