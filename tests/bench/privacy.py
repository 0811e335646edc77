"""What every attack of `trilby audit` reads off what crosses the wire, into docs/results/privacy.md.

    make bench-privacy
    make bench-privacy ARGS=--quick      # one split, few passages, printed

The demo model at every split, on conversations that its recipe writes anew; small real models where they are at hand;
layers at the end, bfloat16, drafts of another kind; and what padded frames hide and cost.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bench.page import ROOT, filled, machine, names, table
from checkpoints import DATA, DEMO
from processes import with_paths

from models.demo.recipe.corpus import training_stream

PAGE = ROOT / "docs" / "results" / "privacy.md"
PLOTS = ROOT / "docs" / "results" / "privacy"
KEPT = ROOT / "build" / "bench-privacy"
AUDITING = ROOT / "device_agent" / "auditing"

SEED = 20261
"""Of the conversations: another one than those that the model has seen were drawn with."""

CONVERSATIONS = 1500
STORIES = DATA / "text" / "tinystories_sample.txt"
OTHERS = ("stories-260k", "tinystories-656k")
TAILS = (1, 2, 4)
WIRES = {
    "drafts, rows packed": ("--pack-rows", "auto"),
    "drafts, rows as they are": ("--pack-rows", "off"),
    "no drafts": ("--draft", "none"),
}
"""What lengths are measured of, plain and padded."""

MATCHING, INVERSION = "vocabulary matching", "trained inversion"

Figures = dict[str, Any]
"""What ``trilby audit --json`` says."""


@dataclass(frozen=True)
class Run:
    """One audit: what it is called, of which model and text, and with which further settings."""

    name: str
    model: Path
    text: Path
    settings: tuple[str, ...] = ()


def demo_text() -> Path:
    """Conversations in the demo model's language, one a line."""
    path = KEPT / "conversations.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = islice(training_stream(SEED), CONVERSATIONS)
    path.write_text("".join(json.dumps({"messages": each.messages}) + "\n" for each in samples), encoding="utf-8")
    return path


def runs(text: Path, quick: bool) -> list[Run]:
    """All that is measured; the first is the page's main table."""
    few = ("--texts", "2", "--prompt-tokens", "24", "--new-tokens", "12", "--pairs", "200")
    small = few if quick else ("--texts", "16")
    found = [Run("demo", DEMO, text, ("--split", "2", *small) if quick else small)]
    every = ("--split", "2" if quick else "11", "--candidates", "2048")
    found.append(Run("exhaustive", DEMO, text, (*every, "--pairs", "", *small)))
    for tail in TAILS[: 1 if quick else None]:
        found.append(Run(f"tail {tail}", DEMO, text, ("--split", "2", "--tail", str(tail), "--pairs", "", *small)))
    for split in ("2",) if quick else ("2", "8"):
        about = ("--split", split, "--dtype", "bfloat16", "--pairs", "", *small)
        found.append(Run(f"bfloat16, split {split}", DEMO, text, about))
    for frames, flag in (("plain", "--no-pad-frames"), ("padded", "--pad-frames")):
        for what, more in WIRES.items():
            about = ("--split", "2", "--pairs", "", flag, *more, *small)
            found.append(Run(f"{frames}, {what}", DEMO, text, about))
    if not quick and STORIES.is_file():
        models = {each: DATA / "models" / each for each in OTHERS}
        found += [Run(name, model, STORIES, small) for name, model in models.items() if model.is_dir()]
    return found


def audited(run: Run, kept: Path) -> Figures:
    """Runs the command as people do, unless it was run so before: a measurement that was stopped goes on."""
    words = ["audit", "--model", str(run.model), "--text", str(run.text), "--json", *run.settings]
    out = kept / run.name.replace(", ", "-").replace(" ", "-")
    said, of = out / "words.json", [words, hashed(run)]
    if said.is_file() and json.loads(said.read_text(encoding="utf-8"))[:2] == of:
        return _found(out)
    subprocess.run(
        [sys.executable, "-m", "service.command", *words, "--out", str(out)],
        stdout=subprocess.DEVNULL, cwd=ROOT, env=with_paths(), check=True,
    )  # fmt: skip
    said.write_text(json.dumps([*of, machine()]), encoding="utf-8")
    return _found(out)


def _found(out: Path) -> Figures:
    """What was found, and on what machine and when."""
    measured = json.loads((out / "words.json").read_text(encoding="utf-8"))[2]
    return {**json.loads((out / "audit.json").read_text(encoding="utf-8")), "measured": measured}


def hashed(run: Run) -> str:
    """Of all that decides what an audit finds: the attacks, the model and the text."""
    whole = hashlib.sha256()
    for path in (*sorted(AUDITING.glob("*.py")), *sorted(run.model.glob("*.*")), run.text):
        whole.update(path.read_bytes())
    return whole.hexdigest()


def percent(share: Figures) -> str:
    """Of what was tried."""
    return f"{100 * share['right'] / share['tried']:.1f} %" if share["tried"] else "–"


def shares(found: Figures) -> str:
    """Each attack at each split."""
    attacks = [each["name"] for each in found["splits"][0]["attacks"]]
    rows = [
        [str(split["split"]), *(percent(each["tokens"]) for each in split["attacks"]), percent(split["output"])]
        for split in found["splits"]
    ]
    return table(["split", *attacks, "answers, by the head"], rows)


def tried_on(found: Figures) -> str:
    """What it was measured on."""
    tokens = found["splits"][0]["attacks"][0]["tokens"]["tried"]
    return (
        f"{found['texts']} passages of {found['text']} (SHA-256 {found['text_sha256'][:12]}…), "
        f"{tokens} tokens of prompts and answers that count; "
        f"attackers learned from {found['known_tokens']:,} other tokens of it at most. Measured on {found['measured']}."
    )


def one_table(found: dict[str, Figures], chosen: Sequence[str], first: str) -> str:
    """Some runs, a row for each of their splits."""
    columns: dict[str, Callable[[Figures], str]] = {
        MATCHING: lambda split: percent(_attack(split, MATCHING)),
        INVERSION: lambda split: percent(_attack(split, INVERSION)),
        "answers, by the head": lambda split: percent(split["output"]),
    }
    rows = [
        [name, str(split["split"]), *(column(split) for column in columns.values())]
        for name in chosen
        if name in found
        for split in found[name]["splits"]
    ]
    return table([first, "split", *columns], rows)


def sizes(found: dict[str, Figures]) -> str:
    """What lengths and times say, plain and padded, and what that costs."""
    rows = []
    for name, each in found.items():
        if not name.startswith(("plain", "padded")):
            continue
        plain = found[name.replace("padded", "plain")]["splits"][0]["onlooker"]
        seen = each["splits"][0]["onlooker"]
        costs = [
            f"{_bytes(seen, part):,} ({_bytes(seen, part) / _bytes(plain, part):.2f} times)"
            for part in ("prompts", "answers", "down")
        ]
        rows.append([
            name, percent(seen["prompts"]), f"{100 * seen['prompt_error']:.0f} %", percent(seen["rounds"]),
            f"{100 * seen['answer_error']:.0f} %", *costs,
        ])  # fmt: skip
    head = ["frames", "prompts measured exactly", "off by", "rounds measured exactly", "answers off by"]
    return table([*head, "bytes up: prompts", "answers", "bytes down"], rows)


def drafts(found: dict[str, Figures]) -> str:
    """What rejected drafts add at each split of the main run."""
    rows = []
    for split in found["demo"]["splits"]:
        drafted = split["drafts"]
        read = percent({"right": drafted["read"], "tried": drafted["tried"]})
        rows.append([str(split["split"]), f"{drafted['sent']:,}", f"{drafted['rejected']:,}", read])
    return table(["split", "rows sent", "of them of rejected drafts", "whose tokens were read"], rows)


def figures(found: dict[str, Figures]) -> dict[str, str]:
    """The page's figures by name."""
    main = found["demo"]
    matched = [percent(_attack(split, MATCHING)) for split in main["splits"]]
    outputs = [percent(split["output"]) for split in main["splits"]]
    said = f"{_span(matched)} of the tokens that were sent, and {_span(outputs)} of the answers"
    absent = [each for each in OTHERS if each not in found]
    others = "\n\n".join(
        f"{name}: {tried_on(found[name])}\n\n{shares(found[name])}" for name in OTHERS if name in found
    )
    return {
        "headline": said,
        "tried": tried_on(main),
        "exhaustive": percent(_attack(found["exhaustive"]["splits"][0], MATCHING)),
        "demo": shares(main),
        "tail": one_table(found, [f"tail {tail}" for tail in TAILS], "layers at the end"),
        "bfloat16": one_table(found, ["bfloat16, split 2", "bfloat16, split 8"], "numbers"),
        "drafts": drafts(found),
        "sizes": sizes(found),
        "others": others + (f"\n\nNot at hand: {', '.join(absent)}." if absent else ""),
    }


def main() -> None:
    """Audit everything, then fill the page, or with ``--quick`` print what would stand there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="everything, though it was measured before")
    parser.add_argument("--quick", action="store_true", help="the smallest of each, printed and not kept")
    arguments = parser.parse_args()
    quick = arguments.quick
    if arguments.again:
        shutil.rmtree(KEPT, ignore_errors=True)
    kept = KEPT / "quick" if quick else KEPT
    found = {run.name: audited(run, kept) for run in runs(demo_text(), quick)}
    made = figures(found)
    if quick:
        print("\n\n".join(f"{name}:\n\n{text}" for name, text in made.items()))
        return
    page = PAGE.read_text(encoding="utf-8")
    missing = set(made) - set(names(page))
    if missing:
        raise SystemExit(f"{PAGE.name} has no figures {', '.join(sorted(missing))}")
    PLOTS.mkdir(exist_ok=True)
    (PLOTS / "demo.svg").write_bytes((KEPT / "demo" / "audit.svg").read_bytes())
    PAGE.write_text(filled(page, made.get), encoding="utf-8")


def _attack(split: Figures, name: str) -> Figures:
    return dict(next(each["tokens"] for each in split["attacks"] if each["name"] == name))


def _bytes(seen: Figures, part: str) -> int:
    """Bytes of a part of what passed."""
    if part == "down":
        return int(seen["down_bytes"])
    return int(seen["prompt_bytes"] if part == "prompts" else seen["up_bytes"] - seen["prompt_bytes"])


def _span(shares: Sequence[str]) -> str:
    least, most = min(shares, key=_number), max(shares, key=_number)
    return least if least == most else f"{least} to {most}"


def _number(text: str) -> float:
    return float(text.split()[0]) if text[0].isdigit() else 0.0


if __name__ == "__main__":
    main()
