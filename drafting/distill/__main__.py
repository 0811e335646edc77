"""``trilby distill``: trains a drafter for a model."""

from __future__ import annotations

import os
from pathlib import Path

import click
import torch
from rich.console import Console

from drafting.distill.card import served_table
from drafting.distill.corpus import Renewal, Source
from drafting.distill.losses import LOSSES
from drafting.distill.making import Described, make_drafter
from drafting.distill.portions import parted, to_measure, to_train
from drafting.distill.text import BadText
from drafting.distill.training import TrainingPlan
from service.bars import Bars
from split_model.errors import ModelError

EPILOG = """\b
Examples:
  trilby distill --model DIR --text stories.txt --split 2 --kind fused
  trilby distill --model DIR --text chats.jsonl --split 2 --kind adapter --loss hat
  trilby distill --model DIR --text prompts.jsonl --split 2 --regenerate --temperature 0 --temperature 1

\b
Text is plain (.txt and anything else) or one JSON object a line (.jsonl):
  {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
  {"prompt": "...", "answer": "..."}
  {"text": "..."}
Plain text is cut into prompts, from 16 to 256 tokens long, that the model goes on with in its own words.

A run that was stopped goes on when it is started again with the same options: behind the last stage that was done
(answers, features), and within training where it was kept last.
"""
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(epilog=EPILOG, context_settings={"show_default": True, "max_content_width": 110})
@click.option("--model", required=True, type=FOLDER, help="checkpoint folder of the model that is drafted for")
@click.option(
    "--text",
    "texts",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="training text; may be given more than once",
)
@click.option(
    "--kind",
    type=click.Choice(["adapter", "fused", "medusa"]),
    default="fused",
    help="adapter: HAT's network; fused: it also sees deep states; medusa: 4 heads",
)
@click.option("--split", type=click.IntRange(1), required=True, help="first layers that the device holds")
@click.option(
    "--loss",
    type=click.Choice(list(LOSSES)),
    default="kl",
    help="hat: SmoothL1 + 0.1 cross entropy; kl; lk-hybrid: the overlap itself",
)
@click.option("--unroll", type=click.IntRange(1, 5), default=3, help="drafted steps trained at once (fused)")
@click.option("--tokens", type=click.IntRange(1), default=4_000_000, help="tokens to read in all")
@click.option("--batch-tokens", type=click.IntRange(64), default=1024, help="tokens of one step")
@click.option("--rate", type=click.FloatRange(0, 1, min_open=True), help="peak learning rate [0.5 / hidden size]")
@click.option("--longest", type=click.IntRange(16), default=512, help="tokens of one text")
@click.option(
    "--regenerate/--as-written",
    default=None,
    show_default="of plain text only",
    help="have the model say what follows a prompt anew, for it is the model that is drafted for; or take the text's",
)
@click.option(
    "--temperature",
    "temperatures",
    multiple=True,
    type=click.FloatRange(0, 2),
    default=(0.0, 1.0),
    help="of what the model says anew; given more than once, answers take turns",
)
@click.option("--answer-tokens", type=click.IntRange(1), default=256, help="most tokens that the model says anew")
@click.option("--heldout", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="text to measure on")
@click.option("--disk-gb", type=click.FloatRange(0, min_open=True), default=8.0, help="most disk space for features")
@click.option("--cache", type=FOLDER, help="where features and checkpoints are kept [OUT/.cache]")
@click.option("--out", type=FOLDER, help="where the drafter goes [MODEL/drafters]")
@click.option("--seed", type=int, default=0)
@click.option("--threads", type=click.IntRange(1), help="CPU threads [all]")
def main(
    model: Path,
    texts: tuple[Path, ...],
    kind: str,
    split: int,
    loss: str,
    unroll: int,
    tokens: int,
    batch_tokens: int,
    rate: float | None,
    longest: int,
    regenerate: bool | None,
    temperatures: tuple[float, ...],
    answer_tokens: int,
    heldout: Path | None,
    disk_gb: float,
    cache: Path | None,
    out: Path | None,
    seed: int,
    threads: int | None,
) -> None:
    """Train a drafter for a model: what proposes tokens on the device for the cloud to verify.

    Writes KIND.safetensors, a page KIND.md and two plots to OUT. What the model computes for each token of the text
    is kept on disk (4 bytes times the hidden size for each, at most --disk-gb; text beyond that is left out) and used
    again while model, split and text stay the same. Without --heldout, a twentieth of the text is kept for measuring:
    the page says how many tokens a verification brings when its prompts are served, greedy and at temperature 1.
    """
    torch.set_num_threads(threads or os.cpu_count() or 1)
    out = out or model / "drafters"
    cache = cache or out / ".cache"
    plan = TrainingPlan(loss, unroll, tokens, batch_tokens, rate, seed)
    renewal = Renewal(temperatures, answer_tokens, seed)
    try:
        source = Source(model, longest)
        if split >= source.spec.num_layers:
            raise click.UsageError(f"--split {split}: this model has {source.spec.num_layers} layers")
        for folder in (out, cache):  # Before hours of work.
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise click.ClickException(f"{folder} cannot be written to: name others by --out and --cache")
        with Bars(Console(stderr=True)) as bars:
            found = source.read(texts, bars)
            given = source.read([heldout], bars) if heldout else []
            found, given = (found, given) if heldout else parted(found, seed)
            if not found or not given:
                raise click.UsageError("there is too little text: no document is left to train or to measure on")
            kept, loops = to_train(source, found, tokens, int(disk_gb * 1e9), renewal, regenerate, cache, bars)
            if not kept:
                raise click.UsageError(f"--disk-gb {disk_gb} is too little for one document")
            files = source.features(kept, split, cache / f"features-{split}", bars)
            answered, heldout_loops = to_measure(source, given, answer_tokens, seed, cache, bars)
            if not answered:
                raise click.UsageError("there is too little text: nothing is left to measure on")
            words = Described(
                _named(texts, regenerate),
                heldout.name if heldout else "a twentieth of the text",
                loops,
                heldout_loops,
            )
            made = make_drafter(source, kind, files, answered, plan, cache / kind, out, words, bars)
    except (ModelError, BadText, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{out / kind}.safetensors: {made.parameters:,} parameters")
    click.echo(served_table(made.served))


def _named(texts: tuple[Path, ...], regenerate: bool | None) -> str:
    plain = any(path.suffix != ".jsonl" for path in texts)
    anew = "answers said anew by the model" if regenerate else "gone on with by the model"
    said = regenerate or (regenerate is None and plain)
    return ", ".join(path.name for path in texts) + (f", {anew}" if said else "")


if __name__ == "__main__":
    main(prog_name="trilby distill")
