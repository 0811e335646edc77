"""What the API costs, and what it holds: each part writes its own figures into docs/benchmarks.md.

    PYTHONPATH=tests python -m bench.api [--only rates] [--litellm PROGRAM] [--guidellm PROGRAM] [--quick]

rates: requests through the gateway beside a bare echo and litellm's proxy. streams: a thousand open ones. limits: of a
key, at two gateways that share a redis. load-…: the figures of ``trilby bench`` beside guidellm's. structured: answers
held to a schema (``bench.structured``). What is compared with is best in an environment of its own; where it is not
found it is left out, and the reason is said.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from bench import structured
from bench.api import limits, load, rates, streams
from bench.page import machine, write_section


def _loaded(case: load.Case, options: argparse.Namespace, folder: Path) -> str:
    return load.run(case, options.guidellm, options.rounds, folder)


PARTS: Final[dict[str, Callable[[argparse.Namespace, Path], str]]] = {
    "rates": lambda options, folder: rates.run(options.litellm, options.rounds, 0.5 if options.quick else 1.0, folder),
    "streams": lambda options, folder: streams.run(options.quick, folder),
    "limits": lambda options, folder: limits.run(options.quick, folder),
    "structured": lambda options, folder: structured.figures(2 if options.quick else structured.ROUNDS),
    **{f"load-{case.name}": partial(_loaded, case) for case in load.CASES},
}

AT_A_TIME: Final = {"structured": "structured"}
"""The figures of a part that has a section of its own."""


def program(given: str, name: str) -> str | None:
    """Where a rival is, None where it is not; that is said."""
    found = shutil.which(given or name)
    if found is None:
        print(
            f"{name} is left out: there is no {given or name} (pip install {name}, --{name} PROGRAM)", file=sys.stderr
        )
    return found


def main() -> None:
    """Measure; write the tables unless --quick."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; several times")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--litellm", default="", help="its program, where it is not in the path")
    parser.add_argument("--guidellm", default="", help="its program, where it is not in the path")
    parser.add_argument("--quick", action="store_true", help="little of everything, nothing written")
    options = parser.parse_args()
    wanted = options.only or list(PARTS)
    options.rounds = 1 if options.quick else options.rounds
    options.litellm = program(options.litellm, "litellm") if "rates" in wanted else None
    options.guidellm = (
        program(options.guidellm, "guidellm") if any(each.startswith("load") for each in wanted) else None
    )
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder:
            text = f"Measured on {machine()}; {PARTS[name](options, Path(folder))}"
        print(f"{text}\n", flush=True)
        if not options.quick:
            write_section(AT_A_TIME.get(name, f"api-{name}"), text)


if __name__ == "__main__":
    main()
