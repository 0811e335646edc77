"""What drafts are worth: how many of their tokens are accepted, for every drafter, without any network.

    PYTHONPATH=tests python -m bench.drafting [--tokens 96] [--every 1] [--drafters FOLDER] [--small FOLDER]...
                                              [--extra NAME=FILE]... [--quick]

All layers in one process, float32. Each drafter drafts by HAT's rule (threshold 0.6, at most 8 tokens) and in chains of
6 whatever it thinks of them, Medusa in trees of 8 nodes; answers are greedy, or sampled at temperature 1. Every greedy
answer is compared with that of transformers, every sampled one verified with keyed noise with the answer of its seed
without drafting. A file named KIND-LOSS is compared with that of its kind: ``--extra fused-hat=FILE``.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import torch
from bench.acceptance import measure
from bench.draft_models import drafters_of, targets
from bench.drafting_report import report
from bench.page import write_section

SHOWN_MISMATCHES = 8


def main() -> None:
    """Measure all models; write the tables unless told to measure only some, or other drafters."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--every", type=int, default=1, help="one in so many of the texts alone; nothing written")
    parser.add_argument("--drafters", type=Path, help="try these instead of the model's own; nothing written")
    parser.add_argument("--small", type=Path, action="append", default=[], help="an independent small model")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME=FILE", help="another drafter's file")
    parser.add_argument("--quick", action="store_true", help="a few short answers, nothing written")
    options = parser.parse_args()
    extra = {name: Path(path) for name, _, path in (each.partition("=") for each in options.extra)}
    torch.set_num_threads(1)
    tokens, every = (8, 24) if options.quick else (options.tokens, options.every)
    models, notes = targets(tokens, every)
    results = []
    for target in models:
        drafters, missing = drafters_of(target, options.drafters, extra, options.small)
        notes += missing if target.name == "demo" else []
        results.append(asyncio.run(measure(target, drafters, tokens)))
    text = report(results, tokens, notes)
    print(text)
    wrong = [line for result in results for lines in result.wrong.values() for line in lines]
    for line in wrong[:SHOWN_MISMATCHES]:
        print(f"differs: {line}")
    if every == 1 and options.drafters is None:
        write_section("drafting", text)


if __name__ == "__main__":
    main()
