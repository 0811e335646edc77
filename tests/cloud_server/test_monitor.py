"""Step times: one curve that never falls, follows the truth, and is not fooled for long."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_server.schedule.monitor import ALPHA, BASE_S, ROW_S, LoadMonitor, StepTimes

steps = st.lists(st.tuples(st.integers(1, 300_000), st.floats(1e-6, 100.0)), max_size=60)


def learnt(base_s: float, row_s: float, noise: float, seed: int = 3, count: int = 2000) -> StepTimes:
    """Step times after ``count`` steps of 1 to 512 rows, each off by up to a part ``noise``."""
    g, random = StepTimes(), Random(seed)
    for _ in range(count):
        rows = random.choice([random.randint(1, 16), random.randint(1, 512)])
        g.observe(rows, (base_s + row_s * rows) * random.uniform(1 - noise, 1 + noise))
    return g


def test_prior() -> None:
    """Before the first step it is the prior, for any rows."""
    assert [StepTimes()(rows) for rows in (0, 1, 1000)] == [BASE_S, BASE_S + ROW_S, BASE_S + 1000 * ROW_S]


@given(steps, st.lists(st.floats(0, 1e6), min_size=2, max_size=30))
def test_positive_and_never_falling(observed: list[tuple[int, float]], rows: list[float]) -> None:
    """Whatever was observed, however contradictory; up to rounding between two neighbours."""
    g = StepTimes()
    for step in observed:
        g.observe(*step)
    seconds = [g(each) for each in sorted(rows)]
    assert all(0 < each < math.inf for each in seconds)
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(seconds))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("base_s", "row_s"), [(0.02, 0.00013), (0.001, 0.01), (0.3, 1e-6)])
def test_converges_to_a_line(base_s: float, row_s: float, seed: int) -> None:
    """With times that are off by up to 20 %, all sizes that were seen are known to 15 %, twice the longest to 25 %."""
    g = learnt(base_s, row_s, noise=0.2, seed=seed)
    for rows in (1, 5, 40, 100, 200, 300, 450, 512):
        assert g(rows) == pytest.approx(base_s + row_s * rows, rel=0.15)
    assert g(1024) == pytest.approx(base_s + row_s * 1024, rel=0.25)


def test_without_noise_a_line_is_known_exactly() -> None:
    """Also between the sizes seen, and far beyond them."""
    g = StepTimes()
    for rows in (1, 30, 100, 300, 500):
        g.observe(rows, 0.01 + 0.001 * rows)
    for rows in (2, 200, 400, 500, 5000):
        assert g(rows) == pytest.approx(0.01 + 0.001 * rows)


def test_one_size_scales_the_prior() -> None:
    """A cloud that is ten times slower than the prior at one size is taken to be so at all sizes; so is one that was
    seen at two sizes too near each other to tell what a row costs."""
    g = StepTimes()
    g.observe(100, 10 * (BASE_S + ROW_S * 100))
    assert [g(rows) for rows in (0, 1, 1000)] == pytest.approx([10 * (BASE_S + ROW_S * rows) for rows in (0, 1, 1000)])
    g = StepTimes()
    g.observe(1, 0.010)
    g.observe(2, 0.013)
    assert g(512) == pytest.approx(0.013 * StepTimes()(512) / StepTimes()(2))


@pytest.mark.parametrize("rows", [1, 100, 512])
def test_an_outlier_is_soon_forgotten(rows: int) -> None:
    """A step twenty times too long raises its size by less than half, and by less than a tenth eight steps later."""
    g = learnt(0.02, 0.00013, noise=0.0)
    truth = 0.02 + 0.00013 * rows
    g.observe(rows, 20 * truth)
    assert truth < g(rows) < 1.5 * truth
    for _ in range(8):
        g.observe(rows, truth)
    assert g(rows) < 1.1 * truth


def test_a_slow_first_step_is_forgotten_at_once() -> None:
    """The first step takes memory and builds kernels; the second says what a step costs."""
    g = StepTimes()
    g.observe(1, 5.0)
    g.observe(1, 0.02)
    assert g(1) == pytest.approx(0.02)


@pytest.mark.parametrize("factor", [20.0, 3.0, 0.3, 0.1])
def test_a_change_is_followed(factor: float) -> None:
    """A cloud that became slower or faster for good is known as such after 20 steps of each size: to 15 %, or to 30 %
    where it is ten times faster, since a mean keeps a hundredth of what was."""
    g = learnt(0.02, 0.00013, noise=0.0)
    for _ in range(20):
        for rows in (1, 16, 64, 256, 512):
            g.observe(rows, factor * (0.02 + 0.00013 * rows))
    for rows in (1, 16, 64, 256, 512):
        assert g(rows) == pytest.approx(factor * (0.02 + 0.00013 * rows), rel=0.3 if factor < 0.2 else 0.15)


def test_what_was_seen_lately_counts_for_more() -> None:
    """Long steps not seen for a long time do not hold down the short ones that became slower since."""
    g = learnt(0.02, 0.00013, noise=0.0)
    for _ in range(1000):
        g.observe(1, 0.2)
    assert g(1) == pytest.approx(0.2, rel=0.15)


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (-1, 1.0), (5, 0.0), (5, -1.0), (5, math.nan), (5, math.inf)])
def test_what_cannot_be_a_step_is_ignored(rows: int, seconds: float) -> None:
    """It leaves prior and means as they were."""
    load = LoadMonitor()
    load.observe(rows, seconds)
    load.g.observe(rows, seconds)
    assert (load.mu, load.eta, load.g(1)) == (0.0, 0.0, StepTimes()(1))


def test_moving_means() -> None:
    """Eq. 1: the first step is the mean, each later one a fifth of it; the same for the seconds."""
    load = LoadMonitor()
    load.observe(10, 0.1)
    assert (load.mu, load.eta) == (10, 0.1)
    load.observe(20, 0.2)
    assert (load.mu, load.eta) == pytest.approx((10 * ALPHA + 20 * (1 - ALPHA), 0.1 * ALPHA + 0.2 * (1 - ALPHA)))
    assert load.g(10) == pytest.approx(0.1)
