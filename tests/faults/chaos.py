"""Kills, stops, partitions, logs that block and clocks that jump, drawn by seeds, under clients that ask all the time.

    make test-chaos [ARGS="--seeds 1000 --minutes 30 --publish"]      seeds from 0 on that have not been tried yet
    make test-chaos ARGS="--seed 123"                                 one of them again

Real processes, greedy answers, each compared with transformers': never a wrong token, no answer that ends early and
looks complete, no answer lost whose text somebody still has; and after each seed everything is whole again and nothing
of before is left. The gateway's clock jumps, where faketime is installed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
from faults.chaos_plan import Plan, plan_of
from faults.chaos_run import Failed, run_seed
from faults.chaos_sites import Broken, broken_site
from faults.page import write
from faults.records import CHAOS, HERE, append, commit, holds, read
from tqdm import tqdm


class Sites:
    """The processes of one site after the other; new ones where a seed has failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._kind = ""
        self._broken: Broken | None = None
        self._count = 0

    def of(self, plan: Plan) -> Broken:
        """The site of a plan, whole."""
        if self._broken is None or plan.site != self._kind:
            self.end()
            self._count += 1
            self._broken = self._stack.enter_context(broken_site(plan.site, self._folder / str(self._count)))
            self._kind = plan.site
        return self._broken

    def end(self) -> None:
        """End the processes, whatever state they are in."""
        if self._broken is not None:
            with suppress(Exception):
                self._broken.site.mend()
        self._broken = None
        with suppress(AssertionError):  # One that does not end in order after all that was killed.
            self._stack.close()
        self._stack = ExitStack()


def tried() -> set[int]:
    """Seeds that have ended well at this commit."""
    return {each["seed"] for each in read(HERE) if each["kind"] == CHAOS and not each["why"] and holds(each)}


def run(seeds: list[int], minutes: float) -> int:
    """Try seeds for so long; how many failed."""
    failed, until = 0, time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder, tqdm(seeds, desc="seeds", unit="") as bar:
        sites = Sites(Path(folder))
        try:
            for seed in bar:
                if time.monotonic() > until:
                    break
                record = one(sites, plan_of(seed))
                append(HERE, record)
                bar.set_postfix(site=record["site"], failed=failed)
                if record["why"]:
                    failed += 1
                    tqdm.write(f"seed {seed} ({record['site']}: {', '.join(record['events'])}): {record['why']}")
                    tqdm.write(f'  again: make test-chaos ARGS="--seed {seed}"')
        finally:
            sites.end()
    return failed


def one(sites: Sites, plan: Plan) -> dict[str, Any]:
    """Try a seed; its record."""
    began = time.monotonic()
    happened, seen = list[str](), dict[str, Any]()
    about = {"kind": CHAOS, "seed": plan.seed, "site": plan.site, "events": happened}
    try:
        seen = run_seed(sites.of(plan), plan, happened)
        why = ""
    except Failed as failure:
        why, seen = str(failure), failure.seen
    except (AssertionError, OSError, httpx.HTTPError) as error:
        why = f"{type(error).__name__}: {error}"[:500]
    if why:
        sites.end()
    return {**about, **seen, "why": why, "seconds": round(time.monotonic() - began, 1), "commit": commit()}


def main() -> None:
    """Try seeds; exit status 1 where one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from 0 on")
    parser.add_argument("--seed", type=int, action="append", help="this one, though it may have been tried")
    parser.add_argument("--minutes", type=float, default=60.0, help="no new seed is begun after so long")
    parser.add_argument("--publish", action="store_true", help="put records and page into docs/results")
    options = parser.parse_args()
    done = tried()
    seeds = options.seed or [seed for seed in range(options.seeds) if seed not in done]
    failed = run(seeds, options.minutes)
    print(f"{failed} seeds failed. The table is in {write(options.publish)}.")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
