"""The paper's figures as we have them agree with each other as they do in the paper."""

from __future__ import annotations

import pytest
from bench.hat import paper
from bench.hat.cells import ABLATION


@pytest.mark.parametrize(
    ("dataset", "method", "delay", "percent"),
    [
        ("specbench", "sd", 1, 26.8),
        ("specbench", "sd+pc", 0, 41.4),
        ("specbench", "sd+pc", 1, 41.5),
        ("specbench", "sd+pc+pd", 1, 49.5),
        ("cnndm", "sd+pc", 1, 61.5),
    ],
)
def test_table_5_gives_the_percentages_of_section_4_4(dataset: str, method: str, delay: int, percent: float) -> None:
    """What the text says in per cent follows from the milliseconds of the table."""
    table = paper.TABLE_5[dataset]
    assert set(table) == set(ABLATION)
    assert 100 * (1 - table[method][delay] / table["none"][delay]) == pytest.approx(percent, abs=0.06)


def test_the_gains_of_the_abstract_are_the_extremes() -> None:
    """41 to 54 % in TTFT are U-shape on SpecBench and U-Medusa on CNN/DM; 77 % in TBT is U-Medusa on CNN/DM."""
    ours, _, medusa, _ = paper.MILLISECONDS["rates", "cnndm", "ttft"][1]
    assert 100 * (1 - ours / medusa) == pytest.approx(54, abs=0.5)
    near = paper.below_base("rates", "specbench", "hat", "ttft")
    assert near is not None and near.percent == pytest.approx(41, abs=0.6) and near.at == 6
    assert max(paper.HAT_BELOW["rates", "cnndm", "tbt"][1]) == 77.2


def test_how_far_others_are_below_u_shape_follows_from_what_hat_is_below_them() -> None:
    """On SpecBench HAT's TBT is 0.587 of U-shape's and 0.681 of Sarathi's, so Sarathi's is 0.862 of U-shape's."""
    below = paper.below_base("rates", "specbench", "u-sarathi", "tbt")
    assert below is not None and below.percent == pytest.approx(13.8, abs=0.05) and below.at == 4
    for name in ("hat", "hat-paper"):  # Both of ours stand beside its HAT.
        hat = paper.below_base("rates", "specbench", name, "tbt")
        assert hat is not None and hat.percent == pytest.approx(41.3)


def test_what_the_paper_does_not_say_is_not_there() -> None:
    """No number for a method it does not have, nor for what it does not show."""
    assert paper.below_base("rates", "specbench", "u-small", "tbt") is None
    assert paper.below_base("traces", "cnndm", "hat", "ttft") is None
