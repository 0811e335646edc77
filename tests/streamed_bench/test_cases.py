"""What LIME's bench plans, and what its page shows of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.streamed.cases import CORES, MODELS, SETTINGS, Cell, cores_of, planned, sessions_of
from bench.streamed.page import Records, results, shown, token_s
from hypothesis import given
from hypothesis import strategies as st

from split_model.spec import ModelSpec


@pytest.mark.parametrize("quick", [True, False])
def test_cells(quick: bool) -> None:
    """Each is planned once, under a name of its own, and every method meets the same conditions."""
    cells = planned(["lime", "other"], quick)
    assert len({cell.name for cell in cells}) == len(cells)
    of = {
        method: {cell.name.replace(method, "") for cell in cells if cell.method == method}
        for method in ("lime", "other")
    }
    assert of["lime"] == of["other"]
    assert all(cell.sessions in sessions_of(cell.setting) for cell in cells)


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


def record(method: str, token: float = 0.0, refused: str = "", equal: bool = True) -> dict[str, Any]:
    """One of the largest model with too little memory."""
    cell = vars(Cell("70b", "over", method, 1, 100.0, 6))
    return {**cell, "refused": refused, "token_s": token, "equal": equal}


def test_page(tmp_path: Path) -> None:
    """The ratio is of the best other method that runs; who does not says why, and wrong tokens are told."""
    records = [record("lime", 0.5), record("offloaded", 1.5), record("pipeline", refused="it lacks 3 MB")]
    for number, each in enumerate(records):
        (tmp_path / f"{number}.json").write_text(json.dumps(each))
    found = Records(tmp_path)
    [line] = results(found).splitlines()[2:]
    assert line.endswith("| 3.00 |") and "out of memory" in line and "| 500 |" in line
    assert token_s([record("lime", refused="no")]) is None
    assert "wrong" in shown([record("lime", 0.5, equal=False)])
