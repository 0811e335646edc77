"""Prompt lengths have the figures of their data set, however few are drawn."""

from __future__ import annotations

import math
import statistics

import pytest
from bench.hat.lengths import CNN_DM, DATASETS, Dataset, corners, draw, quantile
from hypothesis import given
from hypothesis import strategies as st

EACH = pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)


@EACH
@pytest.mark.parametrize(("count", "within"), [(24, 0.04), (48, 0.02), (1000, 0.002)])
def test_table_3_is_met(dataset: Dataset, count: int, within: float) -> None:
    """Mean, P90 and deviation are those of the paper, within a few per cent for 24 draws."""
    drawn = draw(dataset, count, 0)
    assert len(drawn) == count and statistics.fmean(drawn) == pytest.approx(dataset.mean, rel=within / 4)
    assert quantile(sorted(drawn), 0.9) == pytest.approx(dataset.p90, rel=within)
    assert statistics.pstdev(drawn) == pytest.approx(dataset.std, rel=within / 2)


@EACH
def test_the_corners_are_settled_by_mean_and_deviation(dataset: Dataset) -> None:
    """Integrated finely, the quantile function has exactly the data set's figures."""
    least, median, p90, most = corners(dataset)
    assert least == dataset.least and p90 == dataset.p90 and least < median < p90 < most
    fine = [median * 2 * u + least * (1 - 2 * u) for u in _middles(0.0, 0.5)]
    fine += [median + (p90 - median) * (u - 0.5) / 0.4 for u in _middles(0.5, 0.9)]
    fine += [p90 + (most - p90) * (u - 0.9) / 0.1 for u in _middles(0.9, 1.0)]
    assert statistics.fmean(fine) == pytest.approx(dataset.mean, rel=1e-4)
    assert statistics.pstdev(fine) == pytest.approx(dataset.std, rel=1e-4)


def _middles(low: float, high: float) -> list[float]:
    """The middles of strata a thousandth wide."""
    return [low + (number + 0.5) / 1000 for number in range(round((high - low) * 1000))]


@EACH
def test_another_seed_is_another_order_of_the_same(dataset: Dataset) -> None:
    """What two repeats differ in is who comes when."""
    one, again, other = draw(dataset, 24, 1), draw(dataset, 24, 1), draw(dataset, 24, 2)
    assert one == again and one != other and sorted(one) == sorted(other)


@given(count=st.integers(1, 200), seed=st.integers(), most=st.integers(1, 2500))
def test_nothing_is_above_what_the_model_takes(count: int, seed: int, most: int) -> None:
    """Clipping shortens what is too long and nothing else."""
    assert draw(CNN_DM, count, seed, most) == [min(each, most) for each in draw(CNN_DM, count, seed)]


def test_figures_that_cannot_be() -> None:
    """A deviation that no three lines have is refused, and so is a quantile of nothing."""
    with pytest.raises(ValueError, match="three straight lines"):
        corners(Dataset("flat", 100, 500.0, 900.0, 1.0))
    with pytest.raises(ValueError):
        quantile([], 0.5)


@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_quantiles(values: list[float], shares: tuple[float, float]) -> None:
    """They begin with the least, end with the greatest, never fall, and the middle one is the median."""
    ascending = sorted(values)
    low, high = (quantile(ascending, share) for share in sorted(shares))
    assert ascending[0] <= low <= high <= ascending[-1] or math.isclose(low, high)
    assert (quantile(ascending, 0.0), quantile(ascending, 1.0)) == (ascending[0], ascending[-1])
    assert quantile(ascending, 0.5) == pytest.approx(statistics.median(values), rel=1e-9, abs=1e-6)
