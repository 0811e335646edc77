"""Make the drafters of the demo model: ``python -m models.demo.recipe.drafters``.

The text is the recipe's own training stream, so nothing held out is in it: every story, and every second one of the
other conversations. Stories are said anew by the model, every other one at temperature 1; in all else the model says
what it was taught, nearly word for word. Measured on the frozen held-out prompts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console

from drafting.distill.corpus import Renewal, Source
from drafting.distill.making import Described, make_drafter
from drafting.distill.network import FrozenHead
from drafting.distill.text import Document
from drafting.distill.training import TrainingPlan
from service.bars import Bars

from . import stories
from .corpus import heldout_set, training_stream
from .small import SHAPES, save_small, small_model, train_small

SPLIT = 2
TEXT_SEED = 4000
"""Of the stream; the model itself was trained on others."""
ANSWER_TOKENS = 200
BATCH_TOKENS = 1024
RATES = {"adapter": 6e-3, "fused": 6e-3, "medusa": 1e-3}
LOSSES = {"adapter": "hat", "fused": "kl", "medusa": "kl"}
"""The adapter is HAT's, loss and all; Medusa's heads are always trained with cross entropy."""


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m models.demo.recipe.drafters", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/demo"), help="folder of the demo model")
    parser.add_argument("--out", type=Path, help="folder of the drafters (default: MODEL/drafters)")
    parser.add_argument("--run", type=Path, help="folder of features and checkpoints (default: MODEL/run/drafters)")
    parser.add_argument("--kind", action="append", choices=list(LOSSES), help="only these (default: all)")
    parser.add_argument("--loss", choices=["hat", "kl", "lk-hybrid"], help="another loss than the usual one")
    parser.add_argument("--samples", type=int, default=10000, help="conversations")
    parser.add_argument("--tokens", type=int, default=2_200_000, help="tokens read by each drafter")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--small", type=Path, help="also train the independent small models, into folders here")
    return parser.parse_args(arguments)


def text(source: Source, samples: int, seed: int, run: Path, bars: Bars) -> list[Document]:
    """The training text drawn from so many samples of the stream, stories first."""
    told: list[Document] = []
    others: list[Document] = []
    for number, sample in zip(range(samples), training_stream(TEXT_SEED), strict=False):
        document = source.writer.conversation(sample.messages)
        if document is not None and sample.skill == stories.SKILL:
            told.append(document)
        elif document is not None and number % 2 == 0:
            others.append(document)
    return source.answered(told, Renewal((0.0, 1.0), ANSWER_TOKENS, seed), run, bars) + others


def heldout(source: Source) -> list[Document]:
    """The frozen held-out prompts with their reference answers."""
    found = (source.writer.conversation(sample.messages) for sample in heldout_set())
    return [each for each in found if each is not None]


def main(arguments: list[str] | None = None) -> None:
    """Answers, features, and one drafter after the other."""
    given = options(arguments)
    torch.set_num_threads(given.threads)
    out = given.out or given.model / "drafters"
    run = given.run or given.model / "run" / "drafters"
    source = Source(given.model)
    with Bars(Console()) as bars:
        files = source.features(text(source, given.samples, given.seed, run, bars), SPLIT, run / "features", bars)
        greedy = Renewal((0.0,), ANSWER_TOKENS, given.seed)
        measured_on = source.answered(heldout(source), greedy, run, bars, source.exact_model())
        words = Described("the recipe's training stream, stories said anew", "the 100 frozen held-out prompts")
        for kind in given.kind or LOSSES:
            plan = TrainingPlan(
                given.loss or LOSSES[kind],
                tokens=given.tokens,
                batch_tokens=BATCH_TOKENS,
                rate=RATES[kind],
                seed=given.seed,
            )
            name = f"{kind}-{plan.loss}"
            made = make_drafter(source, kind, files, measured_on, plan, run / name, out, words, bars)
            bars.console.print(f"{name}: {made.parameters:,} parameters, tau {made.acceptance.tau:.2f}")
        for name in SHAPES if given.small else ():
            model = small_model(name, source.spec, given.seed)
            with bars.training(given.tokens) as told:
                train_small(
                    model,
                    FrozenHead.load(source.checkpoint),
                    files,
                    given.tokens,
                    given.seed,
                    lambda read, told=told: told(read, ""),  # type: ignore[misc]
                )
            save_small(model, given.model, given.small / f"small-{name}")


if __name__ == "__main__":
    main()
