"""Runs the tests of the fault matrix and of the list of attacks, and fills their table.

    make test-faults [ARGS="--rows F3,F6 --settings plain,galaxy --again --publish"]

Each test leaves a record in ``build/faults``; those that have passed at this commit are not run again, where nothing
has been changed since. The table of all records is ``build/faults/faults.md``; with --publish they, and the page, go
into docs/results.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Collection

from faults.page import write
from faults.records import HERE, done
from faults.row import SETTINGS
from faults.rows import ROWS
from processes import ROOT, with_paths

WITHIN_S = 900
"""The longest time of one test that says nothing else."""
NOTHING_LEFT = 5
"""pytest has found no test to run."""


def ids_of(rows: Collection[str], settings: Collection[str], left_out: Collection[str]) -> list[str]:
    """What pytest is told to collect: the files, or tests, of these rows and settings, but for those left out."""
    found: dict[str, None] = {}
    for row in ROWS:
        if rows and row.id not in rows:
            continue
        for setting, tests in row.tests.items():
            if not settings or setting in settings:
                found.update(dict.fromkeys(each.split("[")[0] if each.endswith("-") else each for each in tests))
    whole = {each for each in found if "::" not in each}
    return [
        f"tests/{each}"
        for each in found
        if each not in left_out and (each in whole or each.split("::")[0] not in whole)
    ]  # fmt: skip


def main() -> None:
    """Run what is missing; write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="", help=f"by commas, of {ROWS[0].id} … {ROWS[-1].id}; empty: all")
    parser.add_argument("--settings", default="", help=f"by commas, of {', '.join(SETTINGS)}; empty: all")
    parser.add_argument("--again", action="store_true", help="also what has passed at this commit")
    parser.add_argument("--list", action="store_true", help="say what would be run, and run nothing")
    parser.add_argument("--publish", action="store_true", help="put records and page into docs/results")
    options, more = parser.parse_known_args()
    rows, settings = (set(filter(None, each.split(","))) for each in (options.rows, options.settings))
    if unknown := (rows - {row.id for row in ROWS}) | (settings - {*SETTINGS, "door"}):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    ids = ids_of(rows, settings, () if options.again else done(HERE))
    status = 0
    if options.list:
        print("\n".join(ids))
    elif ids:
        words = ["-p", "faults.plugin", "-p", "no:randomly", "-v", "-m", "slow or not slow", "--timeout", str(WITHIN_S)]
        words += ["--fault-records", str(HERE), "--fault-rows", options.rows, "--fault-settings", options.settings]
        words += [] if options.again else ["--fault-go-on"]
        command = [sys.executable, "-m", "pytest", *words, *more, *ids]
        status = subprocess.run(command, cwd=ROOT, env=with_paths()).returncode
        status = 0 if status == NOTHING_LEFT else status
    print(f"The table is in {write(options.publish)}.")
    raise SystemExit(status)


if __name__ == "__main__":
    main()
