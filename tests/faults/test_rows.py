"""The registry of rows: complete, and of tests that exist."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import pytest
from faults.attack_rows import ATTACKS
from faults.fault_rows import FAULTS
from faults.mend import changed
from faults.mendings import BY_HAND, MENDINGS, Mending
from faults.row import DOOR, SETTINGS
from faults.rows import ROWS, matches, served_by
from processes import ROOT

TESTS = ROOT / "tests"


@lru_cache(maxsize=64)
def names_in(file: Path) -> frozenset[str]:
    """The names of a file's tests."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (each for each in tree.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


def check_there(test: str) -> None:
    """A test of this id exists, as far as that is known without collecting it."""
    file, _, name = test.partition("::")
    assert (TESTS / file).is_file(), test
    assert not name or name.split("[")[0] in names_in(TESTS / file), test


def test_all_rows_are_there_in_their_order() -> None:
    """F1 to F20 and S1 to S20."""
    assert [row.id for row in ROWS] == [f"{letter}{number}" for letter in "FS" for number in range(1, 21)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_each_setting_has_a_test_or_a_reason(row: object) -> None:
    """Never both, and every test exists."""
    [found] = [each for each in ROWS if each is row]
    settings = (DOOR,) if found in ATTACKS else SETTINGS
    assert {*found.tests, *found.without} == {*settings} and not {*found.tests} & {*found.without}
    for test in found.ids:
        check_there(test)


def test_ids_mean_tests() -> None:
    """A file, a test, one of its cases, or those whose cases begin so."""
    assert matches("a.py", "a.py::test_x[1]") and matches("a.py::test_x", "a.py::test_x[1]")
    assert matches("a.py::test_x[S1-", "a.py::test_x[S1-pickle]") and not matches(
        "a.py::test_x[S1-", "a.py::test_x[S11]"
    )
    assert not matches("a.py::test_x", "a.py::test_xy") and not matches("a.py", "aa.py::test_x")
    row, setting = next(served_by("system/test_group_faults.py::test_a_fault[galaxy-F3]"))
    assert (row.id, setting) == ("F3", "galaxy")
    assert [each for each, _ in served_by("system/test_group_faults.py::test_a_fault[nobody-F3]")] == []


@pytest.mark.parametrize("mending", MENDINGS, ids=lambda mending: f"{mending.row} {mending.file}")
def test_each_mending_can_be_taken_out(mending: Mending) -> None:
    """What is taken out stands once where it is said to, what is left is Python, and the test that has to notice is
    there."""
    text = (ROOT / mending.file).read_text(encoding="utf-8")
    ast.parse(changed(mending, text))
    check_there(mending.test)


def test_each_row_has_a_mending_or_a_reason() -> None:
    """Of all faults and attacks."""
    assert {each.row for each in MENDINGS} | {*BY_HAND} == {row.id for row in (*FAULTS, *ATTACKS)}
    assert not {each.row for each in MENDINGS} & {*BY_HAND}
