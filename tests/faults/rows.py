"""All rows, and which of them a test belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from faults.attack_rows import ATTACKS
from faults.fault_rows import FAULTS
from faults.row import Row

ROWS: Final = (*FAULTS, *ATTACKS)


def served_by(test: str) -> Iterator[tuple[Row, str]]:
    """The rows and settings that a test belongs to.

    Args:
        test: its id below ``tests/``, with its parameters.
    """
    for row in ROWS:
        for setting, tests in row.tests.items():
            if any(matches(each, test) for each in tests):
                yield row, setting


def matches(said: str, test: str) -> bool:
    """Whether an id in a row, a file, a test, one with its parameters or with the first of them, means this test."""
    return test == said or test.startswith((f"{said}::", f"{said}[")) or (said.endswith("-") and test.startswith(said))
