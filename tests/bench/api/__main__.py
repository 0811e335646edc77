"""What the API costs: ``make bench-api``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.api import rates
from bench.page import machine, write_section

PARTS: dict[str, Callable[[argparse.Namespace, Path], str]] = {
    "rates": lambda options, folder: rates.run(
        options.litellm, 2 if options.quick else options.rounds, 0.5 if options.quick else 1.0, folder
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--litellm", default=shutil.which("litellm"))
    options = parser.parse_args()
    for name in options.only or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            text = PARTS[name](options, Path(folder))
        print(text)


if __name__ == "__main__":
    main()
