"""Records of what was tried, one JSON object a line: what the page is filled from, and what need not be done again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from processes import ROOT

TEST: Final = "test"
CHAOS: Final = "chaos"
FRAMES: Final = "frames"
SOAK: Final = "soak"
MENDING: Final = "mending"

HERE: Final = ROOT / "build" / "faults" / "records.jsonl"
"""Where they are added to."""

RESULTS: Final = "docs/results"
PUBLISHED: Final = ROOT / RESULTS / "faults-records.jsonl"
"""What the page shows."""

CHANGED: Final = "+"
"""Behind a commit: the sources were not those of it alone."""


def append(file: Path, record: Mapping[str, Any]) -> None:
    """Add one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as records:
        records.write(json.dumps(record, ensure_ascii=False) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """All of them, the oldest first; none where there is no file."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def latest(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each test the last record, by its id."""
    return {each["test"]: each for each in records if each["kind"] == TEST}


@lru_cache(maxsize=8)
def commit(root: Path = ROOT) -> str:
    """The commit that is checked out, in short, with a "+" where anything but results is changed; "" where git does not
    say."""

    def said(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=root).stdout.strip()

    changed = said("status", "--porcelain", "--", ".", f":!{RESULTS}")
    return said("rev-parse", "--short", "HEAD") + CHANGED * bool(changed)


def holds(record: Mapping[str, Any]) -> bool:
    """Whether what was tried then would be tried again now: at this very commit. What has changed since one may be
    anything, so that nothing holds then."""
    return record["commit"] == commit() and commit()[-1:] not in ("", CHANGED)


def done(file: Path) -> set[str]:
    """Ids of the tests that have passed at this commit."""
    return {test for test, each in latest(read(file)).items() if each["outcome"] == "passed" and holds(each)}
