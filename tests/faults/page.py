"""Fills ``docs/results/faults.md`` from records alone."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.page import filled, machine, table
from faults.attack_rows import ATTACKS
from faults.fault_rows import FAULTS
from faults.records import CHAOS, FRAMES, HERE, MENDING, PUBLISHED, SOAK, latest, read
from faults.row import DOOR, GROUPS, SPLIT, Row
from faults.rows import matches, served_by
from faults.tried import chaos_table, frames_table, mendings_table, soak_table
from processes import ROOT

PAGE: Final = ROOT / "docs" / "results" / "faults.md"
COPY: Final = HERE.parent / "faults.md"
REAL: Final = ("system/", "testbed/")
"""Where tests start real processes; others run the real parts in their own."""

SKIPPED: Final = "skipped"
"""How a test ended that was not run, though it has left a record."""

SILENT: Final = frozenset({"F6", "F18"})
"""Rows where nobody is told that somebody is gone."""

Tests = Mapping[str, Mapping[str, Any]]
"""The last record of each test, by its id."""


def write(publish: bool) -> Path:
    """Fill the page, or a copy of it in ``build``, from what was tried here; returns where it is."""
    if publish:
        shutil.copyfile(HERE, PUBLISHED)
    records = read(HERE)
    page = PAGE if publish else COPY
    COPY.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(filled(PAGE.read_text(encoding="utf-8"), lambda name: figure(name, records)), encoding="utf-8")
    return page


def figure(name: str, records: list[dict[str, Any]]) -> str | None:
    """One of the page's figures; None where nothing was tried that it shows."""
    tests = latest(records)
    kinds = {kind: [each for each in records if each["kind"] == kind] for kind in (CHAOS, FRAMES, SOAK, MENDING)}
    made: dict[str, Callable[[], str | None]] = {
        "counted": lambda: counted(tests),
        "goals": lambda: goals(tests),
        "settings": lambda: settings_table(tests),
        "faults": lambda: faults_table(tests),
        "attacks": lambda: attacks_table(tests),
        "chaos": lambda: chaos_table(kinds[CHAOS]),
        "frames": lambda: frames_table(kinds[FRAMES]),
        "soak": lambda: soak_table(kinds[SOAK]),
        "mendings": lambda: mendings_table(kinds[MENDING]),
    }
    return made[name]() if records and name in made else None


def of(row: Row, tests: Tests, setting: str = "") -> list[Mapping[str, Any]]:
    """The records of a row's tests, in one setting or all."""
    said = row.tests.get(setting, ()) if setting else row.ids
    return [record for test, record in tests.items() if any(matches(each, test) for each in said)]


def notes_of(records: Sequence[Mapping[str, Any]], setting: str = "") -> list[Mapping[str, Any]]:
    """What they have noted, in one setting or all."""
    notes = [note for record in records for note in record["notes"]]
    return [note for note in notes if not setting or note["setting"] in ("", setting)]


def counted(tests: Tests) -> str:
    """All in one line."""
    outcomes = [record["outcome"] for record in tests.values()]
    notes = notes_of(list(tests.values()))
    told = ", ".join(f"{outcomes.count(each)} {each}" for each in ("passed", "failed", "skipped") if each in outcomes)
    commits = sorted({record["commit"] for record in tests.values()})
    sums = {name: sum(note[name] for note in notes) for name in ("compared", "wrong", "lost")}
    return (
        f"{len(outcomes)} tests: {told}; {sums['compared']} tokens compared with transformers', "
        f"**{sums['wrong']}** wrong, **{sums['lost']}** lost. Measured on {machine()}, at {', '.join(commits)}."
    )


def goals(tests: Tests) -> str:
    """Each goal with what was measured."""
    silent, closed, again, wrong, lost = list[float](), list[float](), list[float](), 0, 0
    for test, record in tests.items():
        rows_of = {row.id for row, _ in served_by(test)}
        for note in record["notes"]:
            wrong, lost = wrong + note["wrong"], lost + note["lost"]
            if note["detected_s"] is None:
                continue
            (silent if rows_of & SILENT else closed).append(note["detected_s"])
            if note["recovered_s"] is not None:
                again.append(note["recovered_s"])
    rows = [
        ["noticed where nobody is told, s", "15", _worst(silent), _met(silent, 15.0)],
        ["noticed where a connection ends, s", "1", _worst(closed), _met(closed, 1.0)],
        ["goes on after that, 95 in 100, s", "2", _p95(again), _met([_quantile(again)] if again else [], 2.0)],
        ["wrong tokens", "0", str(wrong), _met([wrong], 0)],
        ["lost without a word", "0", str(lost), _met([lost], 0)],
    ]
    return table("goal | at most | measured | met", rows)


def settings_table(tests: Tests) -> str:
    """Rows by settings: tokens compared, or how it ended."""
    settings = (*SPLIT, *GROUPS)
    rows = [[f"{row.id} {row.fault}", *(_cell(row, setting, tests) for setting in settings)] for row in FAULTS]
    return table(["", *settings], rows)


def faults_table(tests: Tests) -> str:
    """What was injected, what clients saw, and how long it took."""
    rows = []
    for row in FAULTS:
        own = [record for record in of(row, tests) if next(served_by(record["test"]))[0] is row]
        grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for note in notes_of(own):
            grouped.setdefault((note["injected"], note["saw"]), []).append(note)
        for (injected, saw), notes in grouped.items():
            detected = [note["detected_s"] for note in notes if note["detected_s"] is not None]
            again = [note["recovered_s"] for note in notes if note["recovered_s"] is not None]
            numbers = [str(sum(note[member] for note in notes)) for member in ("compared", "wrong", "lost")]
            rows.append([row.id, injected, saw, *numbers, _spread(detected), _spread(again)])
    return table("row | injected | clients saw | tokens | wrong | lost | noticed, s | goes on, s", rows)


def attacks_table(tests: Tests) -> str:
    """What was tried, what must come of it, and how many tests say so."""
    rows = []
    for row in ATTACKS:
        records = of(row, tests, DOOR)
        ran = [record for record in records if record["outcome"] != SKIPPED]
        real = sum(record["test"].startswith(REAL) for record in ran)
        outcome = row.without.get(DOOR) or _outcome(records) + "°" * (len(ran) < len(records))
        rows.append([row.id, row.fault, row.injected, row.expected, f"{len(ran)} ({real})", outcome])
    return table("row | attack | tried | expected | tests (with real processes) | ended", rows)


def _cell(row: Row, setting: str, tests: Tests) -> str:
    if setting in row.without:
        return "–"
    records = of(row, tests, setting)
    notes = notes_of(records, setting)
    outcome = _outcome(records)
    ran = [test for test, record in tests.items() if record["outcome"] != SKIPPED]
    skipped = any(record["outcome"] == SKIPPED for record in records)
    missing = "°" * (skipped or any(not any(matches(said, test) for test in ran) for said in row.tests[setting]))
    if not records or outcome != "passed" or not notes:
        return outcome + missing * bool(records)
    wrong = sum(note["wrong"] + note["lost"] for note in notes)
    return (f"**{wrong} wrong**" if wrong else str(sum(note["compared"] for note in notes))) + missing


def _outcome(records: Sequence[Mapping[str, Any]]) -> str:
    if not records:
        return "not run"
    outcomes = {record["outcome"] for record in records}
    return "**failed**" if "failed" in outcomes else "passed" if "passed" in outcomes else SKIPPED


def _quantile(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def _worst(values: Sequence[float]) -> str:
    return (
        f"{max(values):.2f} (median {statistics.median(values):.2f}, {len(values)} times)" if values else "not measured"
    )


def _p95(values: Sequence[float]) -> str:
    if not values:
        return "not measured"
    median, worst = statistics.median(values), max(values)
    return f"{_quantile(values):.2f} (median {median:.2f}, worst {worst:.2f}, {len(values)} times)"


def _met(values: Sequence[float], most: float) -> str:
    return ("met" if max(values) <= most else "**missed**") if values else ""


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})"
