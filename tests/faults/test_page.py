"""The page of faults, filled from invented records."""

from __future__ import annotations

from typing import Any

from bench.page import names
from faults.page import PAGE, figure
from faults.records import CHAOS, FRAMES, MENDING, SOAK, TEST

F3 = "system/test_split_faults.py::test_a_fault[F3]"
F6 = "system/test_group_faults.py::test_a_fault[galaxy-F18]"


def note(setting: str, **more: Any) -> dict[str, Any]:
    """What a test has seen."""
    known = {"injected": "kill -9", "saw": "it went on", "compared": 160, "wrong": 0, "lost": 0}
    return {"setting": setting, **known, "detected_s": 0.1, "recovered_s": 0.5, **more}


def record(test: str, *notes: dict[str, Any], outcome: str = "passed") -> dict[str, Any]:
    """Of a test."""
    return {
        "kind": TEST,
        "test": test,
        "commit": "abc",
        "outcome": outcome,
        "seconds": 1.0,
        "why": "",
        "notes": [*notes],
    }


def test_every_figure_is_known() -> None:
    """Whatever the page has a place for is filled where there are records, and left alone where there are none."""
    text = PAGE.read_text(encoding="utf-8")
    records = [
        record(F3, note("plain"), note("drafted", recovered_s=3.0)),
        {"kind": CHAOS, "seed": 1, "site": "split", "events": ["cut"], "answers": 2, "compared": 9, "wrong": 0,
         "lost": 0, "ended": 0, "mended_s": 1.0, "seconds": 3.0, "why": ""},
        {"kind": FRAMES, "listener": "cloud", "frames": 7, "batches": 2, "normal": 2, "memory_mb": [1.0, 2.0],
         "files": [3, 4], "why": ""},
        {"kind": SOAK, "minutes": 1.0, "counts": {"chat": 3, "wrong": 0},
         "processes": {"gateway": {"level_mb": 90.0, "slope_mb": 0.1, "files": [10, 11]}}, "why": ""},
        {"kind": MENDING, "row": "F3", "what": "replay", "file": "a.py", "test": "b.py::test_c", "failed": True},
    ]  # fmt: skip
    made = {name: figure(name, records) for name in names(text)}
    assert all(made.values()), made
    assert all(figure(name, []) is None for name in names(text))


def test_a_wrong_token_is_seen() -> None:
    """In its setting alone, and in the goals."""
    records = [record(F3, note("plain", wrong=3), note("drafted")), record(F6, note("galaxy", detected_s=16.0))]
    row = next(line for line in (figure("settings", records) or "").splitlines() if line.startswith("| F3 "))
    assert row.split(" | ")[1] == "**3 wrong**°" and "wrong" not in row.split(" | ")[3]
    goals = figure("goals", records) or ""
    assert "| wrong tokens | 0 | 3 | **missed** |" in goals
    assert next(line for line in goals.splitlines() if "nobody is told" in line).endswith("| **missed** |")


def test_a_failed_test_is_seen() -> None:
    """Of its last run alone."""
    again = [record(F3, note("plain"), outcome="failed"), record(F3, note("plain"))]
    assert "failed" in (figure("settings", again[:1]) or "") and "failed" not in (figure("settings", again) or "")


def test_a_skipped_test_completes_nothing() -> None:
    """Its record says that it was not run: the cell is marked as where there is no record at all."""
    galaxy = "system/test_group_faults.py::test_a_fault[galaxy-F3]"

    def cell(*records: dict[str, Any]) -> str:
        row = next(line for line in (figure("settings", [*records]) or "").splitlines() if line.startswith("| F3 "))
        return row.split(" | ")[5]

    assert cell(record(galaxy, note("galaxy"))) == "160"
    assert cell(record(galaxy, outcome="skipped")) == "skipped°"
    twice = "system/test_clients.py::test_x"  # Of no row: nothing of another test counts.
    assert cell(record(galaxy, note("galaxy")), record(twice, outcome="skipped")) == "160"


def test_a_skipped_attack_is_seen() -> None:
    """It is not counted, and whoever reads that the row has passed reads that something of it was not run."""
    door = "system/test_attacks.py::test_who_speaks_wrongly_is_closed_out"
    attacks = [record(f"{door}[S1-pickle-cloud]"), record(f"{door}[S1-zip-cloud]", outcome="skipped")]
    rows = (figure("attacks", attacks) or "").splitlines()
    assert next(line for line in rows if line.startswith("| S1 ")).endswith("| 1 (1) | passed° |")
