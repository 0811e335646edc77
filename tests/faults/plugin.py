"""pytest with records: ``-p faults.plugin --fault-records FILE [--fault-rows F1,F3] [--fault-settings plain,galaxy]``.

Of what is collected only tests of the rows and settings run that are asked for, with ``--fault-go-on`` only those that
have not passed at this commit. Each leaves a record: how it ended, how long it took, and the notes that it made.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest
from faults.notes import taken
from faults.records import TEST, append, commit, done
from faults.rows import served_by

TESTS: Final = "tests/"
MOST_WHY: Final = 2000
"""Characters of why a test failed, of which the last are kept."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options."""
    group = parser.getgroup("faults")
    group.addoption("--fault-records", default="", help="file to which a record of each test is added")
    group.addoption("--fault-rows", default="", help="rows, by commas; empty: all")
    group.addoption("--fault-settings", default="", help="settings, by commas; empty: all")
    group.addoption("--fault-go-on", action="store_true", help="leave out what has passed at this commit")


def pytest_configure(config: pytest.Config) -> None:
    """Writes records where a file is named."""
    if config.getoption("--fault-records"):
        config.pluginmanager.register(Recorder(Path(config.getoption("--fault-records"))), "fault-recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to no row and setting that is asked for, and what is done."""
    rows = set(filter(None, config.getoption("--fault-rows").split(",")))
    settings = set(filter(None, config.getoption("--fault-settings").split(",")))
    over = done(Path(config.getoption("--fault-records"))) if config.getoption("--fault-go-on") else set()

    def wanted(item: pytest.Item) -> bool:
        return named(item.nodeid) not in over and any(
            (not rows or row.id in rows) and (not settings or setting in settings)
            for row, setting in served_by(named(item.nodeid))
        )

    left_out = [item for item in items if not wanted(item)]
    items[:] = [item for item in items if wanted(item)]
    config.hook.pytest_deselected(items=left_out)


def named(nodeid: str) -> str:
    """A test's id as rows have it."""
    return nodeid.removeprefix(TESTS)


class Recorder:
    """Adds a record of each test to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ended: dict[str, Any] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """What others have noted is not this one's."""
        taken()
        self._ended = {"outcome": "passed", "seconds": 0.0, "why": ""}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of its beginning, the test itself, and its end; the worst counts."""
        self._ended["seconds"] += report.duration
        if report.outcome != "passed" and self._ended["outcome"] != "failed":
            self._ended.update(outcome=report.outcome, why=_why(report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It is over."""
        notes = [asdict(each) for each in taken()]
        append(self._file, {"kind": TEST, "test": named(nodeid), "commit": commit(), **self._ended, "notes": notes})


def _why(report: pytest.TestReport) -> str:
    said = report.longrepr
    text = said[2] if isinstance(said, tuple) else str(said or "")
    return text[-MOST_WHY:]
