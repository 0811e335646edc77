"""The plan of what is measured: every cell once, known to what serves it and to what shows it, within three hours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
from bench.hat.__main__ import main, missing
from bench.hat.cells import ABLATION, CHUNKS, METHODS, REPEATS, Cell, all_cells
from bench.hat.conditions import TRACES
from bench.hat.lengths import DATASETS
from bench.hat.looks import DATASETS as SHOWN
from bench.hat.looks import LOOKS, SETTINGS
from bench.hat.methods import METHODS as SERVED
from bench.hat.page import DOCS, RECORDS
from bench.hat.plan import START_S, grouped, predicted_s
from bench.hat.records import EXPERIMENTS, Place, load, parse
from bench.hat.scaling import PAPER
from click.testing import CliRunner
from hat_bench.invented import parsed, record
from processes import with_paths

PLAN = all_cells()


def test_the_whole_plan_takes_less_than_three_hours() -> None:
    """By what the published runs took; and every cell of it has been measured, so that none is guessed."""
    records = load(DOCS / RECORDS)
    known = {(each.place, each.requests, each.tokens) for each in records}
    assert all((Place.of(cell), cell.requests, cell.tokens) in known for cell in PLAN)
    assert predicted_s(PLAN, records) < 3 * 3600


def test_a_prediction_is_what_runs_took_and_a_start_for_each_group() -> None:
    """Two rates of a method share its processes, another method has its own; what is not known is as what is alike."""
    cells = [Cell("rates", "demo", "specbench", method, rate) for method in ("hat", "ushape") for rate in (0.25, 0.4)]
    records = parsed(*(record("rates", "hat", rate=0.25, repeat=at, machine__seconds=10.0 + at) for at in (0, 2)))
    assert [len(group) for group in grouped(cells)] == [2, 2]
    assert predicted_s(cells, records) == pytest.approx(4 * 11 + 2 * START_S["demo"])


def test_names_are_unique() -> None:
    """A record is found by its cell's name, which is a file's."""
    assert max(Counter(cell.name for cell in PLAN).values()) == 1
    assert not any("/" in cell.name or cell.name.startswith(".") for cell in PLAN)
    cell = Cell("rates", "demo", "specbench", "hat", 0.5)
    others = [
        replace(cell, experiment="single"), replace(cell, setting="wide"), replace(cell, dataset="cnndm"),
        replace(cell, method="ushape"), replace(cell, rate=1.0), replace(cell, repeat=1), replace(cell, stages=2),
        replace(cell, rtt_ms=10.0), replace(cell, trace="lumos-5g"),
    ]  # fmt: skip
    assert len({each.name for each in [cell, *others]}) == len(others) + 1


def test_records_tell_cells_apart() -> None:
    """No two cells are the same place and repeat to what reads records, and every experiment is one it knows."""
    read = [parse({"cell": cell.as_dict()}) for cell in PLAN]
    assert len({(each.place, each.repeat) for each in read}) == len(PLAN)
    for cell, each in zip(PLAN, read, strict=True):
        assert all(getattr(each.place, field.name) == getattr(cell, field.name) for field in fields(Place))
    assert {cell.experiment for cell in PLAN} == set(EXPERIMENTS)


def test_all_that_a_cell_names_is_known() -> None:
    """Methods, data sets, settings and traces, to what serves them and to what shows them."""
    for cell in PLAN:
        assert cell.method in SERVED and cell.method in LOOKS and cell.setting in SETTINGS
        assert cell.dataset in SHOWN and (cell.dataset in DATASETS or cell.dataset == "real")
        assert not cell.trace or cell.trace in TRACES
    assert set(METHODS) | set(ABLATION) | set(CHUNKS) == set(SERVED) and set(PAPER) == set(DATASETS)


def test_the_headline_is_repeated_and_a_sweep_is_not() -> None:
    """One repeat after the other, so that what is compared was measured close together; others can be asked for."""
    repeats = [cell.repeat for cell in PLAN]
    assert repeats == sorted(repeats)
    count = Counter(replace(cell, repeat=0) for cell in PLAN)
    assert all(count[cell] == (REPEATS if cell.headline else 1) for cell in count)
    assert {cell.method for cell in count if cell.headline} == set(METHODS) - {"hat-plain"}
    assert {cell.repeat for cell in all_cells(repeats=REPEATS + 2)} == set(range(REPEATS + 2))
    assert set(all_cells(quick=True)) < set(PLAN) and len(all_cells(quick=True)) == len(METHODS) - 1


def test_what_has_a_record_is_not_missing(tmp_path: Path) -> None:
    """So that an interrupted measurement goes on where it was; other requests of the same name are none of it."""
    cells = PLAN[:6]
    for cell in cells[1:3]:
        (tmp_path / f"{cell.name}.json").write_text(json.dumps({"cell": cell.as_dict()}))
    (tmp_path / f"{cells[3].name}.json").write_text(json.dumps({"cell": replace(cells[3], requests=1).as_dict()}))
    (tmp_path / f"{cells[4].name}.json").write_text("{")
    (tmp_path / f".{cells[5].name}.part").write_text("{}")
    assert missing(cells, tmp_path) == [cells[0], *cells[3:]]


def test_the_command_lists_what_it_would_measure() -> None:
    """Those of the experiments, methods and settings that are named, and how long they take."""
    words = ["--again", "--list", "--setting", "demo", "--only", "rates", "--method", "hat"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    first, *listed = result.output.splitlines()
    wanted = [cell for cell in PLAN if (cell.experiment, cell.method, cell.setting) == ("rates", "hat", "demo")]
    assert [line.split()[0] for line in listed] == [cell.name for cell in wanted]
    assert sum("(headline)" in line for line in listed) == 2 * REPEATS
    assert first.startswith(f"Planned: {len(wanted)} cells, about 0:")


def test_nothing_that_is_only_listed_waits_for_torch() -> None:
    """Neither the command nor what makes the page imports it before it measures."""
    code = "import sys, bench.hat.__main__; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=with_paths())
    assert run.stdout == "False\n", run.stderr
