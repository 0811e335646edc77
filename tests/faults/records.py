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

PUBLISHED: Final = ROOT / "docs" / "results" / "faults-records.jsonl"
"""What the page shows."""


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


@lru_cache(maxsize=1)
def commit() -> str:
    """The commit that is checked out, in short; "" where git does not say."""
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return said.stdout.strip()


def done(file: Path) -> set[str]:
    """Ids of the tests that have passed at this commit."""
    return {
        test
        for test, each in latest(read(file)).items()
        if each["outcome"] == "passed" and each["commit"] == commit()
    }  # fmt: skip
