"""Takes each mending out of a copy of the sources, and says whether a test of its row fails then.

    make test-mendings [ARGS="--rows F3,F6 --publish"]

The copy is of what git knows of this checkout, changes included. All tests also have to pass there before, so that it
is the mending's absence that each fails by.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults.mendings import BY_HAND, MENDINGS, Mending
from faults.page import write
from faults.records import HERE, MENDING, append, commit
from faults.rows import matches
from processes import ROOT, with_paths
from tqdm import tqdm

MORE_S = 30.0
"""For the start of the interpreter, beyond a test's own time."""


class NotThere(ValueError):
    """What a mending names is not once in its file."""


def changed(mending: Mending, text: str) -> str:
    """A file's text without the mending. Raises NotThere."""
    if text.count(mending.old) != 1:
        raise NotThere(f"{mending.row}: {mending.file} has it {text.count(mending.old)} times: {mending.old!r}")
    return text.replace(mending.old, mending.new)


def copied(to: Path) -> None:
    """What git knows of this checkout, as it is now, and what the tests read beside it."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, cwd=ROOT)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)


def run(root: Path, mendings: Sequence[Mending], *more: str) -> subprocess.CompletedProcess[str]:
    """pytest, of the tests of these in a copy. Raises subprocess.TimeoutExpired."""
    words = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "slow or not slow", *more]
    words += ["--timeout", f"{max(each.within_s for each in mendings):g}"]
    tests = dict.fromkeys(f"tests/{each.test}" for each in mendings)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, *tests], cwd=root, env=with_paths(root), capture_output=True,
        text=True, timeout=MORE_S + sum(each.within_s for each in mendings),
    )  # fmt: skip


def passing(root: Path, mendings: Sequence[Mending]) -> Iterator[Mending]:
    """Those whose tests pass in a copy. All are run at once: to start costs more than most of them take."""
    good, bad = list[str](), list[str]()
    ends = {"PASSED": good, "FAILED": bad, "ERROR": bad}
    for line in run(root, mendings, "-rpfE").stdout.splitlines():
        outcome, _, said = line.partition(" tests/")
        ends.get(outcome, []).append(said.split(" - ")[0])
    for each in mendings:
        if any(matches(each.test, test) for test in good) and not any(matches(each.test, test) for test in bad):
            yield each


def passes(root: Path, mending: Mending) -> bool:
    """Whether the test passes in a copy; one that is not over in time has failed.

    Raises RuntimeError where it was not run at all, or skipped.
    """
    try:
        ran = run(root, [mending], "-x", "-rs")
    except subprocess.TimeoutExpired:
        return False
    if ran.returncode == 0 and " passed" not in ran.stdout:
        raise RuntimeError(f"{mending.test} was skipped: {ran.stdout[-500:]}")
    if ran.returncode not in (0, 1):
        if "Timeout" in ran.stdout + ran.stderr:
            return False
        raise RuntimeError(f"{mending.test} was not run: {(ran.stdout + ran.stderr)[-500:]}")
    return ran.returncode == 0


def try_out(root: Path, mending: Mending, why: str) -> dict[str, object]:
    """Take one mending out of a copy, run its test, and put it in again; the record. ``why`` its failure would
    say nothing; "": it does."""
    file = root / mending.file
    before = file.read_text(encoding="utf-8")
    file.write_text(changed(mending, before), encoding="utf-8")
    try:
        failed = not passes(root, mending)
    finally:
        file.write_text(before, encoding="utf-8")
    about = {"row": mending.row, "what": mending.what, "file": mending.file, "test": mending.test}
    return {"kind": MENDING, **about, "failed": failed and not why, "why": why, "commit": commit()}


def main() -> None:
    """Try all, or some; exit status 1 where a test does not notice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="", help="by commas; empty: all")
    parser.add_argument("--publish", action="store_true", help="put records and page into docs/results")
    options = parser.parse_args()
    rows = set(filter(None, options.rows.split(",")))
    chosen = [each for each in MENDINGS if not rows or each.row in rows]
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "trilby"
        copied(root)
        print("Whether the tests pass as it is …")
        good = set(passing(root, chosen))
        for mending in (bar := tqdm(chosen, desc="mendings", unit="")):
            bar.set_postfix(row=mending.row)
            record = try_out(root, mending, "" if mending in good else "the test fails with the mending too")
            append(HERE, record)
            if not record["failed"]:
                unnoticed.append(f"{mending.row}: {mending.what}: {mending.test} {record['why'] or 'still passes'}")
    print("\n".join(unnoticed) or f"Without its mending each of the {len(chosen)} tests fails.")
    for row, why in BY_HAND.items():
        print(f"{row}: not tried: {why}")
    print(f"The table is in {write(options.publish)}.")
    raise SystemExit(bool(unnoticed))


if __name__ == "__main__":
    main()
