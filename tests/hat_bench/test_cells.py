"""The list of what is measured: every cell once, known to what serves it and to what shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
from bench.hat import __main__ as command
from bench.hat.__main__ import main, missing, page_folder
from bench.hat.cells import ABLATION, CHUNKS, METHODS, QUICK_REPEATS, RATES, REPEATS, Cell, all_cells, middle
from bench.hat.conditions import TRACES
from bench.hat.lengths import DATASETS
from bench.hat.looks import CHUNKS as CUT
from bench.hat.looks import DATASETS as SHOWN
from bench.hat.looks import LOOKS, SETTINGS, STRATEGIES
from bench.hat.methods import METHODS as SERVED
from bench.hat.page import RECORDS
from bench.hat.records import EXPERIMENTS, Place, parse, put
from bench.hat.scaling import PAPER
from click.testing import CliRunner

LISTS = {"full": all_cells(False), "quick": all_cells(True)}
each_list = pytest.mark.parametrize("cells", LISTS.values(), ids=LISTS)


@each_list
def test_names_are_unique(cells: list[Cell]) -> None:
    """A record is found by its cell's name, which is a file's."""
    twice = [name for name, count in Counter(cell.name for cell in cells).items() if count > 1]
    assert not twice
    assert not any("/" in cell.name or cell.name.startswith(".") for cell in cells)


@each_list
def test_records_tell_cells_apart(cells: list[Cell]) -> None:
    """No two cells are the same place and repeat to what reads records, and every experiment is one it knows."""
    read = [parse({"cell": cell.as_dict()}) for cell in cells]
    assert len({(each.place, each.repeat) for each in read}) == len(cells)
    for cell, each in zip(cells, read, strict=True):
        assert all(getattr(each.place, field.name) == getattr(cell, field.name) for field in fields(Place))


def test_a_name_says_whatever_differs() -> None:
    """Cells that differ in anything but how many requests of how many tokens have different names."""
    cell = Cell("rates", "demo", "specbench", "hat", 0.5)
    others = [
        replace(cell, experiment="single"), replace(cell, setting="wide"), replace(cell, dataset="cnndm"),
        replace(cell, method="ushape"), replace(cell, rate=1.0), replace(cell, repeat=1), replace(cell, stages=2),
        replace(cell, rtt_ms=10.0), replace(cell, trace="lumos-5g"), replace(cell, arrivals="azure"),
    ]  # fmt: skip
    assert len({each.name for each in [cell, *others]}) == len(others) + 1


@each_list
def test_every_experiment_is_there(cells: list[Cell]) -> None:
    """All of them in the full list; the quick one leaves out what repeats another experiment on other data."""
    left_out = {"real", "arrivals"} if cells is LISTS["quick"] else set()
    assert {cell.experiment for cell in cells} == set(EXPERIMENTS) - left_out


@each_list
def test_all_that_a_cell_names_is_known(cells: list[Cell]) -> None:
    """Methods, data sets, settings and traces, to what serves them and to what shows them."""
    for cell in cells:
        assert cell.method in SERVED
        assert cell.method in {"ablation": STRATEGIES, "chunks": CUT}.get(cell.experiment, LOOKS)
        assert cell.dataset in SHOWN and (cell.dataset in DATASETS or cell.dataset == "real")
        assert cell.setting in SETTINGS
        assert not cell.trace or cell.trace in TRACES
    assert set(METHODS) | set(ABLATION) | set(CHUNKS) == set(SERVED)
    assert set(ABLATION) == set(STRATEGIES) and set(CHUNKS) == set(CUT) and set(METHODS) <= set(LOOKS)
    assert set(PAPER) == set(DATASETS)


def test_quick_is_less_of_the_same() -> None:
    """Every quick cell is one of the full list, requests and all, and it is far fewer."""
    full, quick = LISTS["full"], LISTS["quick"]
    assert set(quick) < set(full)
    assert 2 * sum(cell.requests for cell in quick) < sum(cell.requests for cell in full) / REPEATS * QUICK_REPEATS


@each_list
def test_repeats_are_the_same_cells(cells: list[Cell]) -> None:
    """One repeat after the other, each of all cells, so that what is compared was measured close together."""
    repeats = [cell.repeat for cell in cells]
    assert repeats == sorted(repeats)
    once = {replace(cell, repeat=0) for cell in cells}
    assert len(cells) == len(once) * (max(repeats) + 1)
    assert max(repeats) + 1 == (QUICK_REPEATS if cells is LISTS["quick"] else REPEATS)


def test_more_repeats_can_be_asked_for() -> None:
    """Than planned, or fewer; what there is already stays the same."""
    assert {cell.repeat for cell in all_cells(False, repeats=REPEATS + 2)} == set(range(REPEATS + 2))
    assert [cell for cell in LISTS["full"] if not cell.repeat] == all_cells(False, repeats=1)


@each_list
def test_methods_are_compared_under_one_condition(cells: list[Cell]) -> None:
    """In an experiment on a data set every method has the same conditions; HAT with its rows not packed some of them.

    The wide model is left out: it has no cloud that is sent text.
    """
    for experiment, dataset in {(cell.experiment, cell.dataset) for cell in cells}:
        conditions: dict[str, set[Cell]] = {}
        for cell in cells:
            if (cell.experiment, cell.dataset, cell.setting) == (experiment, dataset, "demo"):
                conditions.setdefault(cell.method, set()).add(replace(cell, method=""))
        plain = conditions.pop("hat-plain", set())
        assert len(set(map(frozenset, conditions.values()))) == 1, (experiment, dataset)
        assert plain <= conditions.get("hat", set())


def test_the_middle_rate() -> None:
    """It is one that is measured, and comes between the others."""
    for rates in RATES.values():
        assert middle(rates) in rates
        assert sum(each < middle(rates) for each in rates) == sum(each > middle(rates) for each in rates)


def test_what_has_a_record_is_not_missing(tmp_path: Path) -> None:
    """So that an interrupted measurement goes on where it was; other requests of the same name are none of it."""
    cells = LISTS["quick"][:6]
    for cell in cells[1:3]:
        (tmp_path / f"{cell.name}.json").write_text(json.dumps({"cell": cell.as_dict()}))
    (tmp_path / f"{cells[3].name}.json").write_text(json.dumps({"cell": replace(cells[3], requests=1).as_dict()}))
    (tmp_path / f"{cells[4].name}.json").write_text("{")
    (tmp_path / f".{cells[5].name}.part").write_text("{}")
    assert missing(cells, tmp_path) == [cells[0], *cells[3:]]


def test_what_was_measured_on_a_short_machine_may_be_measured_again(tmp_path: Path) -> None:
    """Where that is asked for."""
    cells = LISTS["quick"][:2]
    for cell, said in zip(cells, ("", "Other machines took 9% of this one's cores."), strict=True):
        record = {"cell": cell.as_dict(), "machine": {"bottleneck": said}}
        (tmp_path / f"{cell.name}.json").write_text(json.dumps(record))
    assert missing(cells, tmp_path) == [] and missing(cells, tmp_path, short=True) == cells[1:]


def test_what_is_published_is_not_replaced_by_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page of fewer runs goes elsewhere, with the reason; one of as many, or where nothing is published, does not."""
    monkeypatch.setattr(command, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(command, "DOCS", tmp_path)
    cells = LISTS["quick"][:2]
    assert page_folder(tmp_path, quick=False) == tmp_path
    records = tmp_path / "records"
    records.mkdir()
    (tmp_path / RECORDS).write_text("".join(json.dumps({"cell": cell.as_dict()}) + "\n" for cell in cells))
    put({"cell": cells[0].as_dict()}, cells[0], records)
    assert page_folder(records, quick=True) == tmp_path / "cache" / "page" and not capsys.readouterr().out
    assert page_folder(records, quick=False) == tmp_path / "cache" / "page"
    assert capsys.readouterr().out.startswith("1 published runs are not in ")
    put({"cell": cells[1].as_dict()}, cells[1], records)
    assert page_folder(records, quick=False) == tmp_path and not capsys.readouterr().out


def test_nothing_published_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no file to go on from, or a damaged one."""
    monkeypatch.setattr(command, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(command, "DOCS", tmp_path)
    for text in (None, "{"):
        if text is not None:
            (tmp_path / RECORDS).write_text(text)
        result = CliRunner().invoke(main, ["--published", "--list"])
        assert result.exit_code == 1 and result.output.startswith("Nothing can be added to what is published: ")


def test_the_command_lists_what_it_would_measure() -> None:
    """Those of the experiments, methods and settings that are named."""
    words = ["--quick", "--again", "--list", "--setting", "demo", "--only", "single", "--method", "hat"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    wanted = [cell for cell in LISTS["quick"] if (cell.experiment, cell.method) == ("single", "hat")]
    assert [line.strip() for line in result.output.splitlines()[1:]] == [cell.name for cell in wanted]
    assert len(wanted) == 2


def test_nothing_that_is_only_listed_waits_for_torch() -> None:
    """Neither the command nor what makes the page imports it before it measures."""
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent), str(tests)])}
    code = "import sys, bench.hat.__main__; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert run.stdout == "False\n", run.stderr
