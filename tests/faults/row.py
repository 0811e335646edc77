"""A row of the fault matrix, or of the list of attacks, as data: what is done, what must come of it, and which tests
do it in which setting.

A setting is a way to be answered: by device and cloud (a plain answer, the second turn of a conversation, a drafted
answer), or by a group of each mode. What is nothing to the setting stands under ``DOOR``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from service.modes import MODES

SPLIT: Final = ("plain", "second turn", "drafted")
GROUPS: Final = tuple(name for name, mode in MODES.items() if mode.group)
SETTINGS: Final = (*SPLIT, *GROUPS)
DOOR: Final = "door"
"""What does not depend on who answers."""

Tests = Mapping[str, tuple[str, ...]]
"""By setting: ids of tests, below ``tests/``; one without parameters stands for all of its parameters,
one that ends with a hyphen for all that go on so."""


@dataclass(frozen=True)
class Row:
    """One fault, or one attack.

    Attributes:
        fault: what goes wrong.
        injected: by what means, with the real processes where there are any.
        expected: what must come of it.
        tests: which tests do it, by setting.
        without: settings in which there is no such fault, and why.
    """

    id: str
    fault: str
    injected: str
    expected: str
    tests: Tests
    without: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[str, ...]:
        """All its tests, each once."""
        return tuple(dict.fromkeys(test for tests in self.tests.values() for test in tests))


def every_group(test: str) -> Tests:
    """A test of every mode, which stands in it as ``{mode}``; one that is for all of them stands as it is."""
    return {mode: (test.format(mode=mode),) for mode in GROUPS}


def door(*tests: str) -> Tests:
    """What does not depend on who answers."""
    return {DOOR: tests}


def without(settings: tuple[str, ...], why: str) -> dict[str, str]:
    """No such fault in these settings."""
    return dict.fromkeys(settings, why)
