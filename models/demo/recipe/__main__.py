"""Make the demo model: ``python -m models.demo.recipe --minutes 85 --out models/demo``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from .corpus import write_heldout
from .evaluate import report
from .export import export
from .network import TINY, Shape
from .tokenizer import VOCABULARY, save_tokenizer, train_tokenizer
from .train import Plan, train


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m models.demo.recipe", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=85.0, help="training time; the learning rate ends at zero then"
    )
    parser.add_argument("--out", type=Path, default=Path("models/demo"), help="folder of the finished model")
    parser.add_argument("--run", type=Path, help="folder of the checkpoint (default: OUT/run)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument(
        "--workers", type=int, default=0, help="worker processes on a CPU (default: one per core, two at most)"
    )
    parser.add_argument("--rows", type=int, default=6, help="rows of 512 tokens for each worker and step")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="the whole recipe on a tiny scale, in less than a minute")
    parser.add_argument("--no-compile", action="store_true", help="train without torch.compile")
    parser.add_argument("--only-export", action="store_true", help="export the checkpoint without training")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Tokenizer, training, export, held-out set and evaluation, one after the other."""
    given = options(arguments)
    out: Path = given.out
    run: Path = given.run or out / "run"
    run.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if given.device == "auto" else given.device
    workers = given.workers or (1 if device != "cpu" or given.smoke else min(2, os.cpu_count() or 1))
    shape = TINY if given.smoke else Shape()
    if not given.only_export:
        if not (given.resume and (run / "tokenizer.json").exists()):
            count = 300 if given.smoke else 20000
            save_tokenizer(train_tokenizer(given.seed, count, VOCABULARY), run)
        train(
            Plan(
                out=run,
                minutes=given.minutes or (0.1 if given.smoke else 90.0),
                shape=shape,
                rows=2 if given.smoke else given.rows,
                workers=workers,
                device=device,
                seed=given.seed,
                resume=given.resume,
                compiled=not (given.smoke or given.no_compile),
            )
        )
    export(run, out, shape)
    write_heldout(out / "heldout.jsonl")
    print(report(out, limit=6 if given.smoke else None))


if __name__ == "__main__":
    main()
