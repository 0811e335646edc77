"""Sentences of the page, made from the figures they are about: none says what the figures do not. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from bench.hat import paper
from bench.hat.cells import REPEATS
from bench.hat.gains import DELAYS
from bench.hat.goals import TBT_BELOW, TTFT_BELOW, never_measured
from bench.hat.judging import DOUBTED, ENOUGH_REPEATS, FEW, MET, MISSED, UNMEASURED, VERDICTS, Goal
from bench.hat.looks import dataset_label, look, setting_label
from bench.hat.methods import RIVALS
from bench.hat.records import Place, Record
from bench.hat.shown import around, between, percent_below
from bench.hat.summary import QUARTILES_FROM, STEP_STD, TBT, UNEVEN, WORK, Measured, Spread

WIDE_DEVICES = (
    "How fast the 200 M model's devices are beside its cloud is a choice, made after a first one had been measured: "
    "the paper's Table 4 bounds what a drafted token may add to a round, not how fast its devices were, and ours stay "
    "far below that bound. With four devices of 0.12 to 0.2 of a core beside a cloud of 0.9, at 0.15 and 0.09 "
    "requests/s, a drafted token added 0.4, more than the bound, and HAT's TBT was 23 % (SpecBench lengths) and 18 % "
    "(CNN/DM lengths) below U-shape's with all rows down, one repeat of each; the records are those of commit 0abbff2. "
    "Where a drafted token takes a device so long, drafts bring little."
)
"""Of records that are kept in this page's history and not beside it: what was chosen after seeing them must be told."""


REMEASURED = (
    "The demo model's second repeat was begun on one machine and measured anew on another, after its first figures had "
    "been seen. Those it replaces are records of commit 17afd81, Table 5's of commit 6d314a6: at the middle rate HAT's "
    "TTFT was 57.0 % (SpecBench lengths) and 43.4 % (CNN/DM lengths) below U-shape's with all rows down, its TBT 72.1 "
    "and 71.0 %; with PC alone TTFT was 27.8 and 33.7 % below none's, TBT 7.6 and 18.7 %, with SD alone TBT 70.3 and "
    "68.9 %, and PD took another 16.9 and 9.5 % off that."
)
"""As ``WIDE_DEVICES``: of records that this page no longer has."""

OUR_UPLOAD, PAPER_UPLOAD = "scaling.our_upload_per_base", "scaling.paper_upload_per_base"

FOURTH = (
    "The 200 M model's first repeat was cut short, and the machine was another one when it could go on. So there is a "
    "fourth of what the first lacks and of what that is held against, decided on before any of it was seen: what it is "
    "held against has one repeat more than the others."
)
"""Of what was measured more often than planned."""

MENDED = (
    "With the 200 M model and CNN/DM lengths eight runs were measured anew. Where a prompt goes whole and its upload "
    "took longer than 15 s, the cloud took the message that was still arriving for a silent peer, and it was sent "
    "again: in five runs until the request failed (both U-shapes in the second repeat; U-shape with all rows down, "
    "U-Medusa and the small drafter in the third), in three once (U-Sarathi, U-Medusa and the small drafter in the "
    "second). That was mended (commit 7e4bbb5). Runs without the request that they had lost are no longer to be had; "
    "the three that sent twice are records of commit da4477c, with TTFT 16.3, 15.7 and 15.6 s and TBT 230, 86 and "
    "58 ms."
)
"""As ``WIDE_DEVICES``."""


def measured_when(records: Sequence[Record]) -> str:
    """How much was measured, where, when, and of which commits."""
    machines = sorted({each.machine for each in records if each.machine}) or ["a machine that is not named"]
    days = sorted({each.began[:10] for each in records if each.began})
    commits = sorted({each.commit[:12] for each in records if each.commit})
    when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    of = f", commit {', '.join(commits)}" if commits else ""
    return f"{len(records)} runs on {'; '.join(machines)}{when}{of}."


def counted(goals: Sequence[Goal]) -> str:
    """How many goals came out how."""
    if not goals:
        return "No goal could be judged: nothing was measured for one."
    count = Counter(goal.verdict for goal in goals)
    short = sum(goal.verdict == DOUBTED and bool(goal.shortfalls) for goal in goals)
    which = {DOUBTED: f" ({short} of them with a median short of the bar)"} if short else {}
    said = [f"{count[verdict]} {verdict}{which.get(verdict, '')}" for verdict in VERDICTS if count[verdict]]
    few = sum(0 < goal.repeats < ENOUGH_REPEATS for goal in goals)
    rest = f" {few} of them rest on fewer than {ENOUGH_REPEATS} repeats." if few else ""
    return f"Of {len(goals)} goals: {', '.join(said)}.{rest}"


VERDICTS_MEAN = (
    f"A goal is judged on the median of ratios, each taken within one repeat. **{MET}**, **{MISSED}**: the spread of "
    f"the repeats is on that side of the bar. **{DOUBTED}**: it reaches over the bar, or the machine itself was short "
    "of something in a run it rests on, or one of two runs that are compared had cores that took more than "
    f"{UNEVEN:g} times as long for the same work, or it would be met but more than {100 * FEW:g} % of HAT's requests "
    f"failed there. **{UNMEASURED}**: a run it needs is missing. In brackets: how many repeats it rests on, where they "
    f"are fewer than {ENOUGH_REPEATS}. Delays are means over requests."
)


def bars() -> str:
    """Where the bars of the first goals come from."""
    said = []
    for dataset, figures in (("specbench", paper.FIGURE_6), ("cnndm", paper.FIGURE_7)):
        delays = {name: paper.below_base(figures, dataset, "hat", name.lower()) for name in ("TTFT", "TBT")}
        known = [f"{name} {each.percent:.1f} % at {each.at:g} requests/s" for name, each in delays.items() if each]
        said.append(f"{' and '.join(known)} with {dataset_label(dataset)}")
    return (
        f"{TTFT_BELOW:g} and {TBT_BELOW:g} % are the most that the paper has against any baseline, U-Medusa with "
        f"CNN/DM. Below its U-shape it has {'; '.join(said)}."
    )


def left_out(records: Sequence[Record]) -> str:
    """Which records are not on the page; '' where all are."""
    names = ", ".join(record.cell.name for record in records)
    return f"Left out, as they are of no cell that is planned now, {len(records)} records: {names}." if records else ""


def of_prompts(setting: str, dataset: str) -> str:
    """What is asked of a model, and whose acceptance its drafts have."""
    if setting == "wide":
        return (
            "A Llama of 200 M random weights, so large that steps are products of matrices and little else, as the "
            "paper's are; two cores take longer for them. Its prompts are random words. What is "
            "accepted of a draft was recorded on the demo model, behind prompts as long as these, and is replayed; "
            "drafters do their work all the same. What token comes next is laid down beforehand, so that texts are "
            "the same says little here."
        )
    stretched = (
        "For their length its positions are stretched by YaRN, without training (tests/bench/hat/long_demo.py); all "
        "drafters, Medusa's heads and the small model too, are trained for it on such lengths (long_drafters.py)."
    )
    if dataset == "real":
        return (
            "The demo model with its own acceptance. Prompts are SpecBench's own texts, first turns, without those too "
            f"long for the model; they are not of the small world that it was trained on. {stretched}"
        )
    return (
        "The demo model with its own acceptance. Its prompts are conversations of the small world it was trained on, "
        f"of the side that training never saw. {stretched}"
    )


def of_rivals(places: Sequence[Place]) -> str:
    """What is shown apart in a table, where something is."""
    names = [each for each in RIVALS if any(place.method == each for place in places)]
    return " ".join(f"Apart, and no baseline: {look(name).label} ({RIVALS[name]})." for name in names)


def twins(measured: Measured, setting: str, dataset: str, name: str) -> Spread | None:
    """A delay of no strategies over that of U-shape with all rows down, which is the same measured once more."""
    rate = measured.middle_rate(setting, dataset) or 0.0
    one, other = (
        Place("ablation", setting, dataset, "none", rate),
        Place("rates", setting, dataset, paper.BASE, rate),
    )
    return measured.ratio(one, other, name)


def of_twins(measured: Measured, setting: str, dataset: str) -> str:
    """How far apart what is the same is."""
    ratios = {delay: twins(measured, setting, dataset, name) for delay, name in DELAYS.items()}
    said = [f"{delay} {around(ratio, digits=2)} times" for delay, ratio in ratios.items() if ratio]
    if not said:
        return ""
    return (
        "Table 5's first row and U-shape with all rows down are the same, processes and requests and all, and measured "
        f"twice: the first has {' and '.join(said)} what the second has. Differences of that size say nothing."
    )


def noise(measured: Measured, setting: str, dataset: str) -> dict[str, float]:
    """By delay, how many per cent apart the same was when it was measured twice; 0 where it was not."""
    found = {delay: twins(measured, setting, dataset, name) for delay, name in DELAYS.items()}
    return {
        delay: 100 * max(abs(ratio.low - 1), abs(ratio.high - 1)) if ratio else 0.0 for delay, ratio in found.items()
    }


def of_paper_settings(measured: Measured, setting: str, dataset: str) -> str:
    """HAT as it is here beside HAT as in the paper, at every rate."""
    rates = measured.values("rate", experiment="rates", setting=setting, dataset=dataset)
    said = []
    for delay, name in DELAYS.items():
        known = []
        for rate in rates:
            ours, theirs = (Place("rates", setting, dataset, each, rate) for each in ("hat", "hat-paper"))
            if ratio := measured.ratio(ours, theirs, name):
                known.append(f"{around(ratio, digits=2)} at {rate:g} requests/s")
        if known:
            said.append(f"{delay} {', '.join(known)}")
    return f"Ours over HAT as in the paper: {'; '.join(said)}." if said else ""


def of_evenness(measured: Measured, setting: str, dataset: str) -> str:
    """Where steps are less even beside U-shape's than the paper's are."""
    here = measured.middle(setting, dataset)
    theirs = [paper.value(paper.FIGURE_8, dataset, method, "step_std_ms") for method in ("hat", paper.BASE)]
    hat, base = here.get("hat"), here.get(paper.BASE)
    if hat is None or base is None or theirs[0] is None or theirs[1] is None:
        return ""
    ours, share = measured.ratio(hat, base, STEP_STD), theirs[0].value / theirs[1].value
    rows = measured.ratio(hat, hat, "scaling.our_row_per_base", under="scaling.paper_row_per_base")
    if ours is None or ours.low <= share or rows is None:
        return ""
    return (
        f"The paper's HAT makes the cloud's steps {share:.2f} times as uneven as U-shape's are, ours "
        f"{around(ours, digits=2)} times. A row more costs a step of ours {around(rows, digits=1)} times as much "
        "beside one that decodes as the paper's, so that verifications and chunks are seen in it."
    )


def of_real(measured: Measured) -> str:
    """What drafts are worth on texts that the demo model was not trained on; '' where that was not measured."""
    for place in measured.select(experiment="real", method="hat"):
        base = Place(**{**asdict(place), "method": paper.BASE})
        ratio, tau = measured.ratio(place, base, TBT), measured.spread(place, "latency.tau")
        if ratio and tau:
            return (
                f"On real prompts, which are not of the demo model's small world, few drafts are accepted (τ "
                f"{around(tau, digits=2)}): there HAT's TBT is {percent_below(ratio)} % below U-shape's with all rows "
                "down, on answers of few tokens."
            )
    return ""


def limits(measured: Measured, records: Sequence[Record]) -> list[str]:
    """What speaks against relying on the figures more than they bear."""
    said = [
        "Spread is the lowest and the highest of the repeats, or their quartiles where there are at least "
        f"{QUARTILES_FROM}; ratios are taken within a repeat and then summarised.",
        "The paper's figures are those its text and tables print, and what follows from them where it is said; nothing "
        "was read off its plots. Its U-shape stands "
        "beside ours that downloads every deep row of the prompt, as its times suggest; it does not say so.",
        "Models, links and machines are smaller than the paper's: its ratios are kept, its milliseconds are not.",
        *_few_requests(measured),
        *_ratios_apart(measured),
    ]
    few = sum(len(measured.repeats(place)) < ENOUGH_REPEATS for place in measured.places)
    if measured.select(setting="wide"):
        said.append(WIDE_DEVICES)
    if any(1 in measured.repeats(place) for place in measured.select(setting="wide")):
        said.append(MENDED)
    if any(REPEATS in measured.repeats(place) for place in measured.select(setting="wide")):
        said.append(FOURTH)
    if any(1 in measured.repeats(place) for place in measured.select(setting="demo", experiment="rates")):
        said.append(REMEASURED)
    if real := of_real(measured):
        said.append(real)
    if few:
        said.append(f"{few} of {len(measured.places)} conditions were measured fewer than {ENOUGH_REPEATS} times.")
    failed, requests = measured.failed(measured.places)
    if failed:
        said.append(f"{failed} of {requests} requests failed; they are in no delay, and count as missing every SLA.")
    if short := measured.bottlenecks(measured.places):
        said.append(
            f"In {len(short)} of {len(records)} runs the machine itself was short of something, first: {short[0]}"
        )
    if unknown := sum(WORK not in record.numbers for record in records):
        said.append(
            f"Of {unknown} of {len(records)} runs it was not recorded how fast the machine's cores were. Where it "
            "shares them with others that changes, and what was compared then is not marked."
        )
    if absent := never_measured(measured):
        said.append(f"Not measured at all: {', '.join(absent)}.")
    return said + _mixed(records)


def _mixed(records: Sequence[Record]) -> list[str]:
    commits, machines = ({getattr(each, name) for each in records} - {""} for name in ("commit", "machine"))
    said = [f"The runs are of {len(commits)} different commits."] if len(commits) > 1 else []
    if len(machines) > 1:
        said.append(
            f"They were measured on {len(machines)} different machines, where links follow each machine's own speed; "
            "what two of them measured is never compared, but medians of milliseconds are of both."
        )
    return said


def where(setting: str, dataset: str) -> str:
    """A heading's words."""
    return f"{dataset_label(dataset)}, {setting_label(setting)}"


def _few_requests(measured: Measured) -> list[str]:
    """How few requests a run has."""
    records = (record for place in measured.places for record in measured.repeats(place).values())
    counts = [record.requests for record in records if record.requests]
    if not counts:
        return []
    return [f"A run has {between(counts, 0)} requests (see the lengths of prompts): a slow one moves its means."]


def _ratios_apart(measured: Measured) -> list[str]:
    """Which of the paper's ratios the links do not keep: that to a step that decodes follows from the machine."""
    over = [
        ratio.median
        for place in measured.places
        if (ratio := measured.ratio(place, place, OUR_UPLOAD, under=PAPER_UPLOAD))
    ]
    if not over or min(over) <= 1:
        return []
    return [
        f"Links keep the paper's upload of a row beside a step with a chunk. Beside a step that decodes it is "
        f"{between(over, 1)} times the paper's, since a chunk makes our steps longer by more: rounds of drafts, "
        "which carry several rows up, have a slower link here than there."
    ]
