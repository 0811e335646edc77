"""What LIME's bench plans, and what its page shows of records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.lime import PAGE
from bench.page import names
from bench.streamed.cases import ALONE, CORES, MODELS, SETTINGS, Cell, bandwidths, cores_of, planned, sessions_of
from bench.streamed.methods import METHODS
from bench.streamed.page import MAKERS, fill, headline, memory, predictions, results, shown
from bench.streamed.records import Records, cell_of, missing, pack, predicted_s, token_s, unpack
from hypothesis import given
from hypothesis import strategies as st

from split_model.spec import ModelSpec


@pytest.mark.parametrize("quick", [True, False])
def test_cells(quick: bool) -> None:
    """Each is planned once, under a name of its own, of a method and a setting that there are; and every row has ours
    and the plain pipeline with offloading to hold it against."""
    cells = planned(quick)
    assert len({cell.name for cell in cells}) == len(cells)
    assert all(cell.method in METHODS and cell.sessions in sessions_of(cell.setting) for cell in cells)
    rows = {replace(cell, method="", repeat=0) for cell in cells if cell.method not in ALONE}
    assert all(replace(row, method=method) in cells for row in rows for method in ("lime", "offloaded"))
    assert all(cell.sessions == 1 for cell in cells if METHODS[cell.method].planner is None)
    assert predicted_s(cells, Records(Path("nowhere"))) < 3.5 * 3600


def test_bandwidths() -> None:
    """The same for every method, as many as steps, within the paper's bounds, and not always the same."""
    found = bandwidths(40, 7)
    assert found == bandwidths(40, 7) and found[:10] == bandwidths(10, 7) and len(found) == 40
    assert min(found) >= 50 and max(found) <= 250 and len(set(found)) > 5


def test_quotas() -> None:
    """Together they leave a fifth of two cores to the links."""
    assert all(sum(cores_of(setting)) <= 1.6 and max(cores_of(setting)) == CORES for setting in SETTINGS.values())


@given(st.sampled_from(sorted(SETTINGS)), st.integers(10**6, 10**12))
def test_budgets(name: str, weights: int) -> None:
    """In the proportions of the devices, and together what the weights' share of them says."""
    devices = SETTINGS[name]
    budgets = devices.budgets(weights)
    assert sum(budgets) == pytest.approx(weights / devices.fill, rel=1e-3)
    assert budgets[0] * devices.memory[-1] == pytest.approx(budgets[-1] * devices.memory[0], rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Each is one that Trilby reads."""
    assert ModelSpec.from_config(dict(MODELS[name].config)).num_layers == MODELS[name].config["num_hidden_layers"]


def record(method: str, token: float = 0.0, refused: str = "", equal: bool = True, **cell: Any) -> dict[str, Any]:
    """One of the largest model with too little memory."""
    return {
        **vars(replace(Cell("70b", "over", method, 1, 100.0), **cell)),
        **{"refused": refused, "token_s": token, "equal": equal, "took_s": 9.0, "tokens": [[1, 2]]},
        **{"mbits": [100.0, 60.0, 60.0]},
        **{"predicted_s": token, "bound_s": 0.9 * token, "planned_hidden": 0.5, "hidden": [0.25], "streamed": [10**6]},
        **{"peaks": [50], "limits": [100], "steps_s": [token, 2 * token]},
    }


def put(folder: Path, *records: dict[str, Any]) -> Records:
    """As the bench leaves them."""
    for each in records:
        (folder / f"{cell_of(each).name}.json").write_text(json.dumps(each))
    return Records(folder)


def test_page(tmp_path: Path) -> None:
    """The ratio is of the best other method that runs; who does not says why, and wrong tokens are told."""
    ours = [record("lime", 0.5), record("lime", 0.4, repeat=1), record("one-unit-rings", 0.46)]
    late = record("edgeshard-offloaded", refused="out of time: planned 50 s a token")
    others = [record("offloaded", 1.35), late, record("pipeline", refused="pipeline does not fit: a lacks 3 MB")]
    found = put(tmp_path, *ours, *others, record("accelerate", 27.0, equal=False))
    [line] = results(found).splitlines()[2:]
    assert line.endswith("| 3.00 (pipeline + offloading) |") and "450 (400 … 500)" in line
    assert "out of memory" in line and "out of time" in line
    assert "27000 (its tokens differ)" in headline(found) and "| 3.00 |" in headline(found)
    assert token_s([record("lime", refused="no")]) is None and shown([]) == "–"
    assert "wrong" in shown([record("lime", 0.5, equal=False)])
    assert "0.90 | 0.50 | 0.25" in predictions(found) and "| 0.50 |" in memory(found)


def test_every_figure_of_the_page_is_made(tmp_path: Path) -> None:
    """The published page names what there is, once each, stays within 300 lines, and shows both pictures."""
    page = tmp_path / "lime.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    assert sorted(names(page.read_text(encoding="utf-8"))) == sorted(MAKERS)
    folder = tmp_path / "records"
    folder.mkdir()
    fill(put(folder, record("lime", 0.5), record("lime", 0.5, vary=True)), page)
    text = page.read_text(encoding="utf-8")
    assert "500" in text and len(text.splitlines()) <= 300
    assert all((tmp_path / "lime" / name).is_file() for name in ("bars.png", "varied.png"))


def test_records_travel(tmp_path: Path) -> None:
    """What is packed beside the page is there again elsewhere, and is not measured again."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    cells = planned()
    pack(put(one, record("lime", 0.5), record("lime", 0.5, new=1)), cells, tmp_path / "all.jsonl")
    assert unpack(tmp_path / "all.jsonl", other) == 1 and unpack(tmp_path / "all.jsonl", other) == 0
    assert len(missing(cells, other)) == len(cells) - 1
    lime = [cell for cell in cells if cell.method == "lime" and cell.setting == "over" and cell.sessions == 1]
    assert predicted_s(lime[:1], Records(other)) < predicted_s(lime[:1], Records(tmp_path))
