"""``trilby distill``: trains a drafter for a model."""

from __future__ import annotations

import os
import random
from pathlib import Path

import click
import torch
from rich.console import Console

from drafting.distill.bars import Bars
from drafting.distill.features import token_bytes, within
from drafting.distill.losses import LOSSES
from drafting.distill.making import Described, make_drafter
from drafting.distill.preparation import Renewal, Source
from drafting.distill.text import BadText, Document
from drafting.distill.training import Plan
from split_model.errors import ModelError

EPILOG = """\b
Examples:
  trilby distill --model DIR --text chats.jsonl --split 2 --kind fused
  trilby distill --model DIR --text chats.jsonl --split 2 --kind adapter --loss hat
  trilby distill --model DIR --text prompts.jsonl --split 2 --kind fused --regenerate --temperature 0 --temperature 1

\b
Text is plain (.txt and anything else) or one JSON object a line (.jsonl):
  {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
  {"prompt": "...", "answer": "..."}
  {"text": "..."}

A run that was stopped goes on when it is started again with the same options.
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
@click.option("--batch-tokens", type=click.IntRange(64), default=4096, help="tokens of one step")
@click.option("--rate", type=click.FloatRange(0, 1, min_open=True), help="peak learning rate [0.5 / hidden size]")
@click.option("--longest", type=click.IntRange(16), default=512, help="tokens of one text")
@click.option("--regenerate", is_flag=True, help="have the model say the last answers anew: drafts fit better")
@click.option(
    "--temperature",
    "temperatures",
    multiple=True,
    type=click.FloatRange(0, 2),
    default=(0.0,),
    help="of --regenerate; given more than once, answers take turns",
)
@click.option("--answer-tokens", type=click.IntRange(1), default=256, help="most tokens of an answer said anew")
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
    regenerate: bool,
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
    again while model, split and text stay the same. Without --heldout, one document in twenty is kept for measuring.
    """
    torch.set_num_threads(threads or os.cpu_count() or 1)
    out = out or model / "drafters"
    cache = cache or out / ".cache"
    plan = Plan(loss, unroll, tokens, batch_tokens, rate, seed)
    renewal = Renewal(temperatures, answer_tokens, seed)
    try:
        source = Source(model, longest)
        if split >= source.spec.num_layers:
            raise click.UsageError(f"--split {split}: this model has {source.spec.num_layers} layers")
        with Bars(Console(stderr=True)) as bars:
            found = source.read(texts, bars)
            given = source.read([heldout], bars) if heldout else []
            found, given = (found, given) if heldout else _parted(found, seed)
            if not found or not given:
                raise click.UsageError("there is too little text: no document is left to train or to measure on")
            kept = within(found, source.spec.hidden_size, int(disk_gb * 1e9))
            if len(kept) < len(found):
                bars.console.print(f"--disk-gb {disk_gb}: the first {len(kept)} of {len(found)} documents are used")
            if not kept:
                raise click.UsageError(
                    f"--disk-gb {disk_gb} is too little for one document of "
                    f"{len(found[0].ids) * token_bytes(source.spec.hidden_size)} bytes"
                )
            if regenerate:
                kept = source.answered(kept, renewal, cache, bars)
                kept = within(kept, source.spec.hidden_size, int(disk_gb * 1e9))
            files = source.features(kept, split, cache / f"features-{split}", bars)
            greedy = Renewal((0.0,), answer_tokens, seed)
            answered = source.answered(given, greedy, cache, bars, source.exact_model())
            made = make_drafter(
                source,
                kind,
                files,
                answered,
                plan,
                cache / kind,
                out,
                Described(_named(texts, regenerate), heldout.name if heldout else "a twentieth of the text"),
                bars,
            )
    except (ModelError, BadText) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{out / kind}.safetensors: {made.parameters:,} parameters, tau {made.acceptance.tau:.2f}")


def _parted(documents: list[Document], seed: int) -> tuple[list[Document], list[Document]]:
    """Documents to train on and a twentieth, at least one, to measure on."""
    order = list(range(len(documents)))
    random.Random(seed).shuffle(order)
    count = max(1, len(order) // 20)
    return [documents[each] for each in sorted(order[count:])], [documents[each] for each in sorted(order[:count])]


def _named(texts: tuple[Path, ...], regenerate: bool) -> str:
    return ", ".join(path.name for path in texts) + (", answers said anew by the model" if regenerate else "")


if __name__ == "__main__":
    main(prog_name="trilby distill")
