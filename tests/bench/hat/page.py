"""Writes docs/results/hat.md, its plots and hat.json from records: `python -m bench.hat.page RECORDS`.

Nothing is measured here, so the page can be made anew at any time; the records it was made of are kept beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from bench.hat import gain_prose, method_tables, prose, shortfalls, spent, tables, terms
from bench.hat.gains import DOWNLOAD_FIRST, PAPER_ORDER, chains, gain, gains, rests_on
from bench.hat.goals import judge
from bench.hat.latency import DECODE_SLA_S, PREFILL_SLA_S
from bench.hat.looks import place_label
from bench.hat.plots import draw_all
from bench.hat.records import BadRecord, Place, Record, load, packed, planned
from bench.hat.results import as_json, summary
from bench.hat.setups import STAGE_CORES
from bench.hat.shown import between
from bench.hat.summary import Measured
from bench.page import ROOT, write_section

DOCS = ROOT / "docs" / "results"
RECORDS = "hat-records.jsonl"
"""Beside the page: what it was made of, one record a line."""
Plots = Mapping[tuple[str, str, str], str]
Table = Callable[[Measured, str, str], str]


@dataclass(frozen=True)
class Section:
    """A heading with a table of one experiment, for each setting and data set in which it was measured.

    ``plot``: its name, '' for none; ``below``: what is said under it; ``middle``: only the middle rate is shown.
    """

    heading: str
    experiment: str
    make: Table
    plot: str = ""
    below: str = ""
    middle: bool = False

    def places(self, measured: Measured, setting: str, dataset: str) -> list[Place]:
        """What the table shows."""
        if self.middle:
            return list(measured.middle(setting, dataset).values())
        return measured.select(experiment=self.experiment, setting=setting, dataset=dataset)


def _others(experiment: str) -> Table:
    return lambda measured, setting, dataset: tables.others(measured, experiment, setting, dataset)


BATCHES = (
    "kB of a generated token are all that was sent for it, the prompt's rows too. Machine busy: the median share of "
    "all its cores. All methods are greedy and lose nothing, so texts would be the same in exact arithmetic; rows of "
    "bfloat16 are rounded otherwise in another batch, and where two tokens are all but equally likely the text may go "
    "another way."
)
PARTS_MEAN = (
    "Medians of means over requests, ms. Device: until it had sent all that was asked; link: both ways, and whatever "
    "else is none of the other three, as waiting behind other requests' bytes, or for either end to read; queue: "
    "waiting in the cloud for a step; step: computing there; rest: what clients see beyond these, as gateway and "
    "head, which of means by two clocks may also be a little less than nothing. Medians need not add up."
)
CHUNKS_MEAN = (
    "No drafts, rows sent as they are, and only the row that is needed downloaded. The device goes on with the next "
    "chunk while one is on the link or in the cloud. As advised: the cloud says how to cut each prompt, by what its "
    "steps and the link take."
)
SLAS_MEAN = (
    "Prefill: the strictest SLA that all of HAT's own requests meet, so HAT's share is 100 by construction. Decode: as "
    "in the paper the SLA that half of the requests meet with SpecBench lengths, and nine of ten with CNN/DM's; of so "
    "few requests nine of ten are all. The table takes each repeat by itself, the plot all their requests together. "
    "The paper's cloud is a pipeline of one here, as ours is, and of four in Figures 6 to 8."
)
ROUND_TRIPS_MEAN = (
    "Quotas are of periods of 10 ms: whoever has used up theirs waits for the next period anyway, so that a few "
    "milliseconds of round trip may cost a method less than they take, or nothing."
)
MEDIANS_APART = (
    "Times are medians of a row's own repeats, what stands below none is a median of ratios within a repeat: the two "
    "may point different ways."
)
ONE_DEVICE = "Speedup: U-shape's TBT over the method's."
EVENNESS = "A step of the cloud (Figure 8), at the middle rate"
SECTIONS: Sequence[Section] = (
    Section("Delay against request rate (Figures 6 and 7)", "rates", tables.rates, "rates"),
    Section("Where the time goes, at the middle rate", "rates", spent.tables, "spent", PARTS_MEAN, middle=True),
    Section(EVENNESS, "rates", tables.steps, "steps", middle=True),
    Section(
        "Requests within an SLA (Figures 9 and 10), at the middle rate", "rates", tables.slas, "slas", SLAS_MEAN, True
    ),
    Section("All other figures at the middle rate", "rates", method_tables.details, below=BATCHES, middle=True),
    Section("Speculative decoding, one device (Table 4)", "single", method_tables.speculation, below=ONE_DEVICE),
    Section("Strategies one by one (Table 5)", "ablation", method_tables.ablation, below=MEDIANS_APART),
    Section("Number of a prompt's chunks, and nothing else", "chunks", tables.chunks, below=CHUNKS_MEAN),
    Section(
        "Length of the cloud's pipeline (Figures 11 and 12)", "stages", tables.stages, "stages",
        f"At the lowest rate; each stage has {STAGE_CORES:g} of a core, elsewhere the cloud is one process. Gateway "
        "and clients, which have no quota, run on what hosts do not use.",
    ),
    Section("One unloaded device against its upload", "unloaded", method_tables.unloaded),
    Section("Round trips", "rtt", method_tables.round_trips, "round-trips", ROUND_TRIPS_MEAN),
    Section("Bandwidth traces", "traces", _others("traces"), "traces"),
    Section("Delay", "real", _others("real")),
    Section("Arrivals of a trace", "arrivals", _others("arrivals")),
)  # fmt: skip

ALT = {
    "rates": "TTFT and TBT against requests a second, a line for each method",
    "spent": "the parts of TTFT and TBT, a bar for each method and strategy",
    "steps": "mean and standard deviation of the cloud's steps, a bar for each method",
    "slas": "share of requests within an SLA, a line for each method",
    "stages": "TTFT and TBT against the pipeline's length, a line for each method",
    "round-trips": "tokens a second while decoding against the round trip",
    "traces": "TTFT and TBT over bandwidth traces",
    "parts": "what each choice takes away from U-shape's delay",
}


def page_text(records: Sequence[Record], plots: Plots, left_out: Sequence[Record] = ()) -> str:
    """The page. ``plots`` are file names by setting, data set and name; ``left_out`` records are only named."""
    measured = Measured(records)
    judged = judge(measured)
    parts = [
        "# HAT's evaluation on a real testbed",
        f"Written by `python -m bench.hat.page docs/results/{RECORDS}` from the records that `make bench-hat` left "
        "there; edits are lost.",
        f"Measured: {prose.measured_when(records)}",
        prose.left_out(left_out),
        "## Goals",
        prose.counted(judged),
        method_tables.goals(judged) if judged else "",
        prose.VERDICTS_MEAN if judged else "",
        prose.bars() if judged else "",
        shortfalls.shortfalls(measured, judged),
        *_how(measured),
    ]
    for setting, dataset in measured.pairs():
        parts += [f"## {_capital(prose.where(setting, dataset))}", prose.of_prompts(setting, dataset)]
        for section in SECTIONS:
            parts += _section(measured, setting, dataset, section, plots)
    parts += [*_second_look(measured, plots), "## Limits"]
    parts.append("\n".join(f"- {each}" for each in prose.limits(measured, records)))
    return "\n\n".join(each for each in parts if each) + "\n"


def _how(measured: Measured) -> list[str]:
    lengths, limits = terms.prompt_lengths(measured), terms.goodput_limits(measured)
    drafted = terms.drafted_tokens(measured)
    return [
        "## How it was measured",
        "Every device, the cloud and the clients are processes of their own in network namespaces, joined by links "
        "whose bandwidth is shaped each way; a device's and the cloud's speed is a CPU quota. Hosts, links, quotas and "
        "command lines are in one file for each installation (tests/bench/testbed/scenarios); bandwidths follow from "
        "what the machine takes for a step (tests/bench/hat/scaling.py), the quotas of pipelines' stages from what "
        "fits it (setups.py). Models are served in bfloat16. A method is a set of flags of the product (methods.py), "
        "so only the method differs.",
        terms.installations(measured),
        "A device begins in its fastest mode, and after every five requests a mode is drawn anew for each: of eight "
        "requests the last three may find other ones, of six the last. Paper: 30 devices in modes up to ten times "
        "apart, four GPUs.",
        "Requests arrive whether or not earlier ones are answered (open loop), as a Poisson process has them when it "
        "is known how many come; or as a trace of Azure's had them, stretched to the same rate. Rates are ours: a "
        "row with a figure of the paper names the rate that it is of. Of so few requests a p99 is little "
        "less than the longest. Bandwidth traces are scaled so that the mean of a minute of them is the link's; most "
        "cells are shorter, and may find much less or more. Where one device's own speed is "
        "asked for, they come one at a time instead, shown as rate 0, and neither links nor devices change.",
        "TTFT is from sending a request to its first token. TBT of a request is the time from its first to its last "
        "token over the tokens behind the first; shown is its mean over requests, as in the paper. Percentiles of TBT "
        "are of single tokens: what comes together shares the wait before it.",
        "Links are slowed until uploading a row takes the same share of a step of the cloud with a chunk as in the "
        "paper; elsewhere than with one device they vary around it as the paper's do (5–10 MB/s up, 10–15 down). The "
        "paper prints no such steps: they follow from what one of its four GPUs takes for an average step of U-Sarathi "
        "(Figure 8), and from 0.28 s for 2048 tokens of Vicuna-7B (section 2.3), 13/6.7 times that for Vicuna-13B:",
        terms.ratios(measured),
        *(
            [
                "How fast devices are beside the cloud shows in what a drafted token adds to a round, over a whole "
                "token of U-shape's. In Table 4 a round takes 1.24 to 1.25 of those (tokens it brings over speedup); "
                "how many it drafts the paper does not say, but no fewer than it accepts:",
                drafted,
            ]
            if drafted
            else []
        ),
        *(
            ["Prompts are as long as the paper's sets have them, less so where few are asked for:", lengths]
            if lengths
            else []
        ),
        *(
            [
                f"Goodput is requests a second that keep two limits: for the first token, {PREFILL_SLA_S:g} s for "
                f"128 prompt tokens (a shorter prompt counts as 128), and {DECODE_SLA_S:g} s for 10 tokens behind "
                "it, which the paper's HAT keeps on SpecBench for all and for half of its requests. Here they are "
                "scaled as our cloud's steps are beside the paper's: the first by steps with a chunk, the second by "
                "steps that decode:",
                limits,
            ]
            if limits
            else []
        ),
    ]


def _section(measured: Measured, setting: str, dataset: str, section: Section, plots: Plots) -> list[str]:
    places = section.places(measured, setting, dataset)
    if not places or not (made := section.make(measured, setting, dataset)):
        return []
    conditions = tables.conditions(measured, places)
    parts = [f"### {section.heading}", conditions, *_picture(plots, setting, dataset, section.plot), made]
    parts += [section.below, prose.of_rivals(places)]
    if section.plot == "rates":
        parts.append(prose.of_paper_settings(measured, setting, dataset))
    if section.experiment == "ablation":
        parts.append(prose.of_twins(measured, setting, dataset))
        parts += [each(measured, setting, dataset) for each in (spent.why_not_table_5, spent.of_waiting)]
    if section.heading == EVENNESS:
        parts.append(prose.of_evenness(measured, setting, dataset))
    return parts


def _second_look(measured: Measured, plots: Plots) -> list[str]:
    """What in the gain comes from which choice."""
    parts = [
        "## What in the gain comes from which choice",
        "From U-shape that downloads every deep row of the prompt to HAT as it is here: what each choice takes away on "
        "top of those above it, within one repeat. Order matters, so there are two: the paper's, where the download of "
        "unneeded rows is left out last, and the one where it is left out first. All at the middle rate; the wide "
        "model was measured with fewer choices alone. Within a repeat the parts add up, and so do means over repeats, "
        "which are drawn; medians need not.",
    ]
    found_at = {pair: found for pair in measured.pairs() if (found := gains(measured, *pair))}
    short = gain_prose.in_short([each for found in found_at.values() for each in found])
    if short:
        places = ", ".join(place_label(*pair) for pair in found_at)
        parts.append(
            "In short, per cent of the gain that each choice makes up, the median of its repeats (*: one of them in "
            "doubt), first to last of these that were measured so, and where there is a gain to share out in every "
            f"repeat: {places}."
        )
        parts.append("\n".join(f"- {each}" for each in short))
    for (setting, dataset), found in found_at.items():
        parts.append(f"### {_capital(prose.where(setting, dataset))}")
        parts.append(tables.conditions(measured, rests_on(measured, setting, dataset)))
        parts += _picture(plots, setting, dataset, "parts")
        for chain in chains(setting):
            here = [each for each in found if each.chain == chain]
            if not here:
                continue
            repeats = between([each.whole.count for each in here], 0)
            parts += [f"{_capital(chain)}, repeats: {repeats}.", method_tables.parts(here)]
            parts.append("\n".join(f"- {gain_prose.of_gain(each)}" for each in here))
        both = [gain(measured, setting, dataset, chain, "TTFT") for chain in (PAPER_ORDER, DOWNLOAD_FIRST)]
        said = [gain_prose.of_download(*both), *gain_prose.of_ours(found, prose.noise(measured, setting, dataset))]
        parts.append("\n".join(f"- {each}" for each in said if each))
    return parts if found_at else []


def _picture(plots: Plots, setting: str, dataset: str, name: str) -> list[str]:
    file = plots.get((setting, dataset, name))
    return [f"![{_capital(prose.where(setting, dataset))}: {ALT[name]}](hat/{file})"] if file else []


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def section(records: Sequence[Record]) -> str:
    """What docs/benchmarks.md has of it."""
    measured = Measured(records)
    return "\n\n".join([f"Measured: {prose.measured_when(records)}", method_tables.headline(measured)])


def write(source: Path, docs: Path = DOCS) -> Path:
    """Write page, plots, summary and the records that are shown; the page's path. Plots that are no longer made are
    removed. What is published stands in docs/benchmarks.md too.

    Raises:
        BadRecord: see ``load`` and ``planned`` of ``bench.hat.records``; then nothing was written.
    """
    records, left_out = planned(load(source))
    lines = packed(source, records)
    measured = Measured(records)
    pictures = docs / "hat"
    plots = draw_all(measured, pictures)
    for stale in set(pictures.glob("*.png")) - {pictures / name for name in plots.values()}:
        stale.unlink()
    (docs / "hat.json").write_text(as_json(summary(records, left_out)), encoding="utf-8")
    (docs / RECORDS).write_text(lines, encoding="utf-8")
    page = docs / "hat.md"
    page.write_text(page_text(records, plots, left_out), encoding="utf-8")
    if docs == DOCS:
        write_section("hat", section(records))
    return page


@click.command()
@click.argument("records", type=click.Path(exists=True, path_type=Path))
@click.option("--docs", type=click.Path(file_okay=False, path_type=Path), default=DOCS, show_default="docs/results")
def main(records: Path, docs: Path) -> None:
    """Write the page, its plots and its summary from RECORDS, a folder of them or a file with one on each line.

    Example: python -m bench.hat.page build/bench-hat/records
    """
    try:
        click.echo(f"Wrote {write(records, docs)}.")
    except BadRecord as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
