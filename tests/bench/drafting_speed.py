"""What drafting is worth in time: decoding speed over links of several lengths, against the same without drafting.

    PYTHONPATH=tests python -m bench.drafting_speed [--rounds 6] [--tokens 64] [--drafters FOLDER] [--ablate] [--quick]

A cloud process and a device's chain, one thread each, with a relay between them that delays and throttles. A round
answers one held-out prompt of each skill, greedily, in every mode, the modes one after the other. What a mode learns
stays with it for all rounds over a link, as in an agent. ``--ablate`` measures instead what parts of it are worth.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from bench.draft_models import Target, drafters_of
from bench.draft_speeds import SPLIT, Link, Mode, Run, groups_of, measure, median_ms, ratios
from bench.draft_texts import Text, held_out
from bench.page import machine, table, write_section
from bench.runs import spread
from checkpoints import DEMO

from drafting.drafter import Drafter
from service.draft_settings import DraftSettings

HAT_BAR, OURS_BAR, FLOOR = 1.65, 2.2, 0.97
FAR_MS = 20.0
"""Round trip from which on the bars hold."""

RTT_MS = (0.0, 20.0, 50.0, 80.0)
MB_S = (1.0, 10.0)
PLAIN = Mode("U-shape")
HAT = Mode(
    "HAT",
    "adapter",
    DraftSettings(draft_length="fixed", draft_threshold=0.6, draft_cap=8, prepare="last", stream_rows="off"),
)
OURS = Mode("ours", "hybrid")
BARS = {HAT.name: HAT_BAR, OURS.name: OURS_BAR}

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ABLATIONS: dict[str, tuple[list[Link], list[Mode]]] = {
    "Drafting on while a verdict travels": (
        [Link(20, 10), Link(80, 10)],
        [Mode(kind, "hybrid", DraftSettings(prepare=kind)) for kind in ("none", "last", "all")],
    ),
    "Sending rows as they are made": (
        [Link(20, 1), Link(80, 10)],
        [Mode(kind, "hybrid", DraftSettings(stream_rows=kind)) for kind in ("off", "on", "auto")],
    ),
    "Length of drafts": (
        [Link(20, 10), Link(80, 10)],
        [
            Mode("by cost", "hybrid"),
            *(
                Mode(f"{each:g}", "hybrid", DraftSettings(draft_length="fixed", draft_threshold=each, draft_cap=24))
                for each in THRESHOLDS
            ),
        ],
    ),
}
"""What is compared with the first of its modes, over which links."""

LEFT_OUT = "there is no drafter '{}' for the demo model: {} is left out"


def available(modes: Sequence[Mode], drafters: Mapping[str, Drafter]) -> list[Mode]:
    """Those that there is a drafter for; says which there are not."""
    for mode in modes:
        if mode.drafter and mode.drafter not in drafters:
            print(LEFT_OUT.format(mode.drafter, mode.name))
    return [mode for mode in modes if not mode.drafter or mode.drafter in drafters]


def verdict(run: Run, link: Link, values: Sequence[float]) -> str:
    """Which bar there is, and whether it is met. Near by, HAT has none: its rule drafts whether it pays or not."""
    far = (link.rtt_ms or 0) >= FAR_MS
    if not far and run.mode is HAT:
        return "–"
    ratio = statistics.median(values)
    bar = BARS[run.mode.name] if far else FLOOR
    return f"{bar:g}, {'met' if ratio >= bar else 'missed'}"


def speeds(results: Mapping[Link, Sequence[Run]]) -> str:
    """Speeds and ratios of all links."""
    rows = []
    for link, (base, *others) in results.items():
        for run in others:
            values = ratios(run, base)
            rows.append(
                [
                    link.name,
                    run.mode.name,
                    f"{statistics.median(run.per_second):.1f} : {statistics.median(base.per_second):.1f}",
                    spread(values, 2),
                    verdict(run, link, values),
                    f"{run.tau:.2f}",
                    f"{run.wrong} of {run.answers}",
                ]
            )
    columns = ["link", "mode", "tokens a second, to U-shape", "ratio", "bar", "τ", "wrong answers"]
    return table(columns, rows)


def breakdown(results: Mapping[Link, Sequence[Run]]) -> str:
    """Where the time of a verification goes."""
    rows = []
    for link, runs in results.items():
        for run in runs:
            gap, waited, cloud = (median_ms(each) for each in (run.gaps_s, run.waited_s, run.cloud_s))
            parts = [
                gap,
                waited,
                cloud,
                None if waited is None or cloud is None else waited - cloud,
                None if waited is None or gap is None else gap - waited,
            ]
            rows.append([link.name, run.mode.name, *("–" if part is None else f"{part:.1f}" for part in parts)])
    columns = ["link", "mode", "a round", "waiting", "cloud", "wire", "verdict and draft"]
    return table(columns, rows)


def compared(title: str, results: Mapping[Link, Sequence[Run]]) -> str:
    """One ablation: each mode to the first."""
    rows = []
    for link, runs in results.items():
        for run in runs:
            tally = run.way.tally if run.way is not None else None
            prepared = tally is not None and tally.prepared
            rows.append(
                [
                    link.name,
                    run.mode.name,
                    f"{statistics.median(run.per_second):.1f}",
                    spread(ratios(run, runs[0]), 3),
                    f"{run.tau:.2f}",
                    f"{tally.hits / tally.prepared:.2f} of {tally.prepared}" if tally is not None and prepared else "–",
                    f"{run.wrong} of {run.answers}",
                ]
            )
    columns = ["link", "mode", "tokens a second", "ratio to the first", "τ", "prepared rightly", "wrong answers"]
    return f"{title}:\n\n{table(columns, rows)}"


def run_all(
    links: Sequence[Link], modes: Sequence[Mode], drafters: Mapping[str, Drafter], texts: list[list[Text]], tokens: int
) -> dict[Link, list[Run]]:
    """All modes over all links."""
    return {link: asyncio.run(measure(link, modes, drafters, texts, tokens)) for link in links}


def main() -> None:
    """Measure; write the tables unless --quick or with other drafters than the model's own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--drafters", type=Path, help="try these instead of the model's own; nothing written")
    parser.add_argument("--ablate", action="store_true", help="parallel drafting, streaming, and rules for the length")
    parser.add_argument("--quick", action="store_true", help="one short round over two links, nothing written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, tokens = (1, 8) if options.quick else (options.rounds, options.tokens)
    texts = held_out(tokens, 24 if options.quick else 1)
    drafters, _ = drafters_of(Target("demo", DEMO, SPLIT, [], []), options.drafters)
    drafters.setdefault("hybrid", drafters["lookup"])  # Where nothing is trained, lookup is what a device has.
    groups = groups_of(texts, rounds)
    said = (
        f"Measured on {machine()}; one thread each, float32, {rounds} rounds, answers of at most {tokens} tokens up to "
        "their end; decoding only. Ratios are medians over rounds, with quartiles. "
    )
    if options.ablate:
        parts = [said]
        for title, (links, modes) in ABLATIONS.items():
            if options.quick:
                links = [replace(links[0], rtt_ms=5)]
            parts.append(compared(title, run_all(links, available(modes, drafters), drafters, groups, tokens)))
    else:
        links = [Link(None), *(Link(rtt, rate) for rtt in RTT_MS for rate in MB_S)]
        if options.quick:
            links = [Link(None), Link(5, 10)]
        results = run_all(links, available([PLAIN, HAT, OURS], drafters), drafters, groups, tokens)
        said += (
            f"Bars from {FAR_MS:g} ms on: {HAT.name} {HAT_BAR:g}, {OURS.name} {OURS_BAR:g}; nearer, that {FLOOR:g}. "
            f"{HAT.name}: its adapter, threshold 0.6, at most 8 tokens, drafting on for the last of them. "
            f"{OURS.name}: what a device does by itself."
        )
        parts = [said, speeds(results), "Medians of each verification, in ms:", breakdown(results)]
    text = "\n\n".join(parts)
    print(text)
    if not options.quick and options.drafters is None:
        write_section("drafting-ablation" if options.ablate else "drafting-speed", text)


if __name__ == "__main__":
    main()
