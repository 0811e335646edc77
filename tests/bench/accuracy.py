"""How accurate a served model is, through its API, with how sure that is, and beside another run of the same questions.

    PYTHONPATH=tests python -m bench.accuracy [--quick] [--model DIR]... [--url URL] [--tasks boolq,rte]
        [--record FILE] [--beside FILE] [--body JSON] [-- flags of trilby serve]
    PYTHONPATH=tests python -m bench.accuracy --pruned [--quick] [--minutes N]

Of the demo model its skills, by fresh questions that a program judges; of others the perplexity of a text; and with
lm-evaluation-harness the tasks of SuperGLUE where ``--tasks`` names some. Without ``--model`` the demo model and the
small real ones that are at hand are measured. Without ``--url`` a Trilby is started for each, with the flags behind
``--``; ``--mode local`` where there are none. ``--record`` keeps what was measured, and ``--beside`` compares with what
another run has kept, pair by pair: what is left out of a model under a time limit, say, beside the exact one.

``--pruned`` measures without a server what each way to leave heads out loses, for EdgeFormer's page: see
``accuracy_pruned.py``. What is interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from bench import accuracy_harness, accuracy_pruned
from bench.accuracy_parts import Api, Figure, perplexity, skills
from bench.edge.edgeformer_figures import FIGURES
from bench.edge.records import Records
from bench.edge.run import PAGES, fill
from bench.page import ROOT, machine, table
from checkpoints import DATA, DEMO, REAL_MODELS
from serving import Serving

from device_agent.answering.tokenizer import Tokenizer

QUESTIONS, WINDOWS = 4000, 64
"""So many questions are an interval of ± 0.6 points where 96 % are right."""

QUICK_QUESTIONS, QUICK_WINDOWS, QUICK_ROWS = 60, 4, 20
HARNESS_WITHIN_S = 6 * 3600.0
STORIES, PROSE = "tinystories_sample.txt", "wikitext2_valid.txt"
"""What the perplexity is of: of the small real models, which know stories only, and of all others."""


def main() -> None:
    """Measure, print the table, keep the record."""
    given = _arguments()
    if given.pruned:
        _pruned(given.quick, given.minutes)
        return
    models = [Path(each) for each in given.model] or [DEMO, *(DATA / "models" / each for each in REAL_MODELS)]
    there = [each for each in models if each.is_dir()]
    if not there:
        sys.exit(f"There is no folder {models[0]}.")
    if given.url and len(there) != 1:
        sys.exit("--url has one model: say with --model in which folder its tokenizer is.")
    measured: dict[str, list[Figure]] = {}
    for model in there:
        with _served(model, given.url, given.flags) as url, closing(Api(url, given.key)) as api:
            measured[model.name] = _measured(api, model, given)
    beside = _read(given.beside) if given.beside else {}
    print(f"{machine()}\n\n{_table(measured, beside)}")
    if given.record:
        kept = {name: [asdict(each) for each in figures] for name, figures in measured.items()}
        given.record.write_text(json.dumps(kept), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    arguments, flags = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, flags = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few questions: whether it runs")
    parser.add_argument("--model", action="append", default=[], help="a folder with a checkpoint")
    parser.add_argument("--pruned", action="store_true", help="what ways to leave heads out lose")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of --pruned, as much as fits")
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--key", default="", help="the server's API key")
    parser.add_argument("--tasks", default="", help=f"of {', '.join(accuracy_harness.SUPERGLUE)}")
    parser.add_argument("--record", type=Path, help="keep what was measured here")
    parser.add_argument("--beside", type=Path, help="compare with what was kept there")
    parser.add_argument(
        "--body", type=json.loads, default={}, help="members of every request, as JSON; without --tasks"
    )
    given = parser.parse_args(arguments)
    if given.tasks and given.body:  # Its figures would be those of requests without them.
        parser.error("lm-evaluation-harness says its requests itself: leave --body or --tasks out")
    given.flags = flags or ["--mode", "local"]
    return given


def _pruned(quick: bool, minutes: float) -> None:
    """Measure, then fill EdgeFormer's page; quick: a few, and no page."""
    until = time.monotonic() + 60 * minutes
    if quick:
        with tempfile.TemporaryDirectory() as passing:
            accuracy_pruned.measure(Path(passing), accuracy_pruned.cells(quick), QUICK_QUESTIONS)
        return
    folder = ROOT / "build" / "bench-edgeformer"
    accuracy_pruned.measure(folder, accuracy_pruned.cells(), QUESTIONS, until)
    published = Records.of(PAGES / "edgeformer-records.jsonl").found
    fill("edgeformer", FIGURES, {**published, **Records.of(folder).found})


@contextmanager
def _served(model: Path, url: str | None, flags: Sequence[str]) -> Iterator[str]:
    """Where a model is served."""
    if url:
        yield url
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Serving(Path(folder) / "serve.log", "--model", str(model), *flags) as running,
    ):
        yield running.base


def _measured(api: Api, model: Path, given: argparse.Namespace) -> list[Figure]:
    """All figures of one model."""
    found: list[Figure] = []
    if model.resolve() == DEMO:
        found += skills(api, QUICK_QUESTIONS if given.quick else QUESTIONS, **given.body)
    text = DATA / "text" / (STORIES if model.name in REAL_MODELS else PROSE)
    if not found and text.exists():  # The demo model knows no text but its own.
        encode = Tokenizer.load(model, ()).text
        found.append(perplexity(api, text, encode, QUICK_WINDOWS if given.quick else WINDOWS, **given.body))
    if given.tasks:
        found += _harness(api, model, given)
    return found


def _harness(api: Api, model: Path, given: argparse.Namespace) -> list[Figure]:
    lm_eval = accuracy_harness.command()
    if lm_eval is None:
        sys.exit(accuracy_harness.MISSING)
    most = QUICK_ROWS if given.quick else None
    tasks = {name: accuracy_harness.superglue(name, most) for name in given.tasks.split(",")}
    arguments = [f"base_url={api.base}/completions", f"model={api.model}", f"tokenizer={model.resolve()}"]
    arguments += ["tokenizer_backend=huggingface", "num_concurrent=4", f"max_length={api.longest}"]
    with tempfile.TemporaryDirectory() as folder:
        found = accuracy_harness.evaluate(
            lm_eval, Path(folder), tasks, "local-completions", *arguments, within_s=HARNESS_WITHIN_S, key=given.key
        )
    return [Figure(name, "%", tuple(map(float, each.right))) for name, each in found.items()]


def _read(record: Path) -> dict[str, list[Figure]]:
    kept = json.loads(record.read_text(encoding="utf-8"))
    return {
        name: [Figure(each["what"], each["unit"], tuple(each["values"])) for each in figures]
        for name, figures in kept.items()
    }


def _table(measured: dict[str, list[Figure]], beside: dict[str, list[Figure]]) -> str:
    rows = []
    for model, figures in measured.items():
        for figure in figures:
            low, high = figure.interval
            row = [model, figure.what, f"**{figure.value:.2f}**{figure.unit}", f"{low:.2f} … {high:.2f}"]
            row.append(str(len(figure.values)))
            if beside:
                pairs = [above for each in beside.get(model, ()) if (above := figure.above(each)) is not None]
                unit = " points" if figure.unit else " %"
                row.append("{:+.2f} ± {:.2f}".format(*pairs[0]) + unit if pairs else "–")
            rows.append(row)
    head = ["model", "what", "figure", "with 95 %", "questions or windows", *["beside the record"] * bool(beside)]
    return table(head, rows)


if __name__ == "__main__":
    main()
