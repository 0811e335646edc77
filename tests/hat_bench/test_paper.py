"""The paper's figures as we have them agree with each other as they do in the paper."""

from __future__ import annotations

import pytest
from bench.hat import paper
from bench.hat.looks import STRATEGIES


@pytest.mark.parametrize(
    ("dataset", "method", "kind", "percent"),
    [
        ("specbench", "sd", "tbt_ms", 26.8),
        ("specbench", "sd+pc", "ttft_ms", 41.4),
        ("specbench", "sd+pc", "tbt_ms", 41.5),
        ("specbench", "sd+pc+pd", "tbt_ms", 49.5),
        ("cnndm", "sd+pc", "tbt_ms", 61.5),
    ],
)
def test_table_5_gives_the_percentages_of_section_4_4(dataset: str, method: str, kind: str, percent: float) -> None:
    """What the text says in per cent follows from the milliseconds of the table."""
    table = paper.TABLE_5[dataset]
    assert set(table) == set(STRATEGIES)
    assert 100 * (1 - getattr(table[method], kind) / getattr(table["none"], kind)) == pytest.approx(percent, abs=0.06)


def test_the_gains_of_the_abstract_are_the_extremes() -> None:
    """41 to 54 % in TTFT are U-shape on SpecBench and U-Medusa on CNN/DM; 77 % in TBT is U-Medusa on CNN/DM."""
    ours, medusa = (paper.value(paper.FIGURE_7, "cnndm", method, "ttft_ms") for method in ("hat", "u-medusa"))
    near = paper.below_base(paper.FIGURE_6, "specbench", "hat", "ttft")
    assert ours is not None and medusa is not None and near is not None
    assert 100 * (1 - ours.value / medusa.value) == pytest.approx(54, abs=0.5)
    assert near.percent == pytest.approx(41, abs=0.6) and near.at == 6
    assert max(said.value for said in paper.FIGURE_7 if said.quantity == "tbt_percent_below") == 77.2


def test_how_far_others_are_below_u_shape_follows_from_what_hat_is_below_them() -> None:
    """On SpecBench HAT's TBT is 0.587 of U-shape's and 0.681 of Sarathi's, so Sarathi's is 0.862 of U-shape's."""
    below = paper.below_base(paper.FIGURE_6, "specbench", "u-sarathi", "tbt")
    assert below is not None and below.percent == pytest.approx(13.8, abs=0.05) and below.at == 4
    hat = paper.below_base(paper.FIGURE_6, "specbench", "hat", "tbt")
    assert hat is not None and hat.percent == pytest.approx(41.3)


def test_what_the_paper_does_not_say_is_not_there() -> None:
    """No number for a method it does not have, nor for one without its U-shape."""
    assert paper.below_base(paper.FIGURE_6, "specbench", "u-small", "tbt") is None
    assert paper.below_base(paper.FIGURE_11, "cnndm", "hat", "ttft") is None
    assert paper.value(paper.FIGURE_8, "specbench", "cloud", "step_ms") is None


def test_hat_as_in_the_paper_is_its_hat() -> None:
    """So its figure stands beside both of ours."""
    assert paper.value(paper.FIGURE_8, "cnndm", "hat-paper", "step_ms") == paper.value(
        paper.FIGURE_8, "cnndm", "hat", "step_ms"
    )


def test_every_number_is_said_once() -> None:
    """One method, quantity and place on an axis has one value."""
    figures = [getattr(paper, f"FIGURE_{number}") for number in range(6, 13)]
    keys = [
        (each.where, each.dataset, each.method, each.quantity, each.at, each.than)
        for figure in figures
        for each in figure
    ]
    assert len(set(keys)) == len(keys) == 60
