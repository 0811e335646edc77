"""Writes docs/results/hat.md, its plots and hat.json from the records of a folder: `python -m bench.hat.page FOLDER`.

Nothing is measured here, so the page can be made anew at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
from bench.hat import method_tables, prose, tables
from bench.hat.gains import CHAINS, gain, gains
from bench.hat.goals import judge
from bench.hat.plots import draw_all
from bench.hat.records import BadRecord, Place, Record, load
from bench.hat.results import as_json, summary
from bench.hat.shown import MISSING, number
from bench.hat.summary import Measured
from bench.page import ROOT, table

DOCS = ROOT / "docs" / "results"
Section = tuple[str, str, str, Callable[[Measured, str, str], str]]
SECTIONS: Sequence[Section] = (
    ("Delay against request rate (Figures 6 and 7)", "rates", "rates", tables.rates),
    ("A step of the cloud (Figure 8), at the middle rate", "rates", "steps", tables.steps),
    ("Requests within an SLA (Figures 9 and 10), at the middle rate", "rates", "slas", tables.slas),
    ("All other figures at the middle rate", "rates", "", method_tables.details),
    ("Speculative decoding, one device (Table 4)", "single", "", method_tables.speculation),
    ("Strategies one by one (Table 5)", "ablation", "", method_tables.ablation),
    ("Length of the cloud's pipeline (Figures 11 and 12)", "stages", "stages", tables.stages),
    ("One unloaded device against its upload", "unloaded", "", method_tables.unloaded),
    ("Round trips", "rtt", "round-trips", method_tables.round_trips),
    ("Bandwidth traces", "traces", "traces", lambda *at: tables.others(at[0], "traces", at[1], at[2])),
    ("Real prompts", "real", "", lambda *at: tables.others(at[0], "real", at[1], at[2])),
    ("Arrivals of a trace", "arrivals", "", lambda *at: tables.others(at[0], "arrivals", at[1], at[2])),
)
"""Heading, experiment, plot ('' for none), table."""

ALT = {
    "rates": "TTFT and TBT against requests a second, a line for each method",
    "steps": "mean and standard deviation of the cloud's steps, a bar for each method",
    "slas": "share of requests within an SLA, a line for each method",
    "stages": "TTFT and TBT against the pipeline's length, a line for each method",
    "round-trips": "tokens a second against the round trip",
    "traces": "TTFT and TBT over bandwidth traces",
    "parts": "what each choice takes away from U-shape's delay",
}


def page_text(records: Sequence[Record], plots: Mapping[tuple[str, str, str], str]) -> str:
    """The page. ``plots`` are file names by setting, data set and name."""
    measured = Measured(records)
    judged = judge(measured)
    parts = [
        "# HAT's evaluation on a real testbed",
        "Written by `python -m bench.hat.page FOLDER` from the records that `make bench-hat` leaves; edits are lost.",
        f"Measured: {prose.measured_when(records)}",
        "## Goals",
        prose.counted(judged),
        method_tables.goals(judged),
        "A goal is judged on the median of ratios, each taken within one repeat. Methods that stand apart (the cloud "
        "that is sent text, llama.cpp's split) are shown and not counted as baselines.",
        "## How it was measured",
        "Every device, the cloud and the clients are processes of their own in network namespaces, joined by links "
        "whose bandwidth is shaped each way; a device's and the cloud's speed is a CPU quota; all of it is in one "
        "file for each installation (tests/bench/testbed/scenarios). Models are served in bfloat16. A method is a "
        "set of flags of the product (tests/bench/hat/methods.py), so only the method differs.",
        "Prompts are as long as the paper's sets have them. Those of the demo model are made of its own world, and its "
        "acceptance is its own; for their length its positions are stretched by YaRN, without training "
        "(tests/bench/hat/long_demo.py).",
        "Requests arrive whether or not earlier ones are answered (open loop). Where one device's own speed is asked "
        "for, they come one at a time instead, shown as rate 0, and neither links nor devices change.",
        "TTFT is from sending a request to its first token; TBT is a request's time from first to last token over the "
        "tokens behind the first, then the mean over requests; percentiles of TBT are of single tokens. Links are "
        "slowed until uploading a row takes the same share of a step of the cloud as in the paper:",
        _ratios(measured),
    ]
    for setting, dataset in measured.pairs():
        parts.append(f"## {_capital(prose.where(setting, dataset))}")
        for heading, experiment, plot, make in SECTIONS:
            places = measured.select(experiment=experiment, setting=setting, dataset=dataset)
            if places:
                parts += [f"### {heading}", tables.conditions(measured, places), make(measured, setting, dataset)]
                parts += _picture(plots, setting, dataset, plot)
    parts += [*_second_look(measured, plots), "## Limits"]
    parts.append("\n".join(f"- {each}" for each in prose.limits(measured, records)))
    return "\n\n".join(parts) + "\n"


def _second_look(measured: Measured, plots: Mapping[tuple[str, str, str], str]) -> list[str]:
    """What in the gain comes from which choice."""
    parts = [
        "## What in the gain comes from which choice",
        "From U-shape that downloads every deep row of the prompt to HAT as it is here: what each choice takes away on "
        "top of those above it, within one repeat. Order matters, so there are two: the paper's, where the download of "
        "unneeded rows is left out last, and the one where it is left out first. All at the middle rate.",
    ]
    told = False
    for setting, dataset in measured.pairs():
        found = gains(measured, setting, dataset)
        if not found:
            continue
        told = True
        parts.append(f"### {_capital(prose.where(setting, dataset))}")
        ends = ("ushape-full", "hat")
        rate = measured.middle_rate(setting, dataset)
        places = [Place("rates", setting, dataset, method, rate or 0.0) for method in ends]
        parts.append(tables.conditions(measured, places))
        for chain in CHAINS:
            here = [each for each in found if each.chain == chain]
            parts += [f"{_capital(chain)}:", method_tables.parts(here)]
            parts.append("\n".join(f"- {prose.of_gain(each)}" for each in here))
        chains = [gain(measured, setting, dataset, chain, "TTFT") for chain in CHAINS]
        said = [prose.of_download(*chains), *prose.of_ours(found)]
        parts += [" ".join(each for each in said if each)] if any(said) else []
        parts += _picture(plots, setting, dataset, "parts")
    return parts if told else [*parts, "Not measured: it needs HAT and U-shape with full download at the middle rate."]


def _picture(plots: Mapping[tuple[str, str, str], str], setting: str, dataset: str, name: str) -> list[str]:
    file = plots.get((setting, dataset, name))
    return [f"![{_capital(prose.where(setting, dataset))}: {ALT[name]}](hat/{file})"] if file else []


def _ratios(measured: Measured) -> str:
    """Every ratio that was recorded as the paper's and ours."""
    rows = []
    for setting, dataset in measured.pairs():
        places = measured.select(setting=setting, dataset=dataset)
        names = {name for place in places for each in measured.repeats(place).values() for name in each.numbers}
        for name in sorted(each.removeprefix("scaling.paper_") for each in names if each.startswith("scaling.paper_")):
            values = [
                sorted(
                    value for place in places for value in measured.numbers(place, f"scaling.{whose}_{name}").values()
                )
                for whose in ("paper", "our")
            ]
            shown = [
                "–".join(dict.fromkeys(number(each) for each in (found[0], found[-1]))) if found else MISSING
                for found in values
            ]
            rows.append([prose.where(setting, dataset), name.replace("_", " "), *shown])
    return table(["prompts and model", "what", "paper", "ours"], rows) if rows else "No ratio was recorded."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def write(folder: Path, docs: Path = DOCS) -> Path:
    """Write page, plots and summary; the page's path. Plots that are no longer made are removed.

    Raises:
        BadRecord: see ``bench.hat.records.load``; then nothing was written.
    """
    records = load(folder)
    measured = Measured(records)
    pictures = docs / "hat"
    plots = draw_all(measured, pictures)
    for stale in set(pictures.glob("*.png")) - {pictures / name for name in plots.values()}:
        stale.unlink()
    (docs / "hat.json").write_text(as_json(summary(records)), encoding="utf-8")
    page = docs / "hat.md"
    page.write_text(page_text(records, plots), encoding="utf-8")
    return page


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--docs", type=click.Path(file_okay=False, path_type=Path), default=DOCS, show_default="docs/results")
def main(folder: Path, docs: Path) -> None:
    """Write the page, its plots and its summary from the records in FOLDER.

    Example: python -m bench.hat.page build/bench-hat
    """
    try:
        click.echo(f"Wrote {write(folder, docs)}.")
    except BadRecord as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
