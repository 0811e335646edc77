"""What a step costs is learnt from steps of any mixture, and never less than nothing."""

from __future__ import annotations

import math
from dataclasses import astuple
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_server.step_cost import StepCost, StepCosts

PRIOR = StepCost(0.02, 0.00013)


def take(costs: StepCosts, truth: StepCost, rows: int, start: int, beside: int = 0, factor: float = 1.0) -> None:
    """A step of a chunk of ``rows`` rows at position ``start`` (0 rows: none) and ``beside`` decode rows, each with
    2000 positions to read; its time is off by a factor."""
    pairs, reads = rows * (start + rows / 2), beside * 2000.0
    seconds = truth(rows + beside) + truth.pair_s * pairs + truth.read_s * reads
    costs.observe(rows + beside, seconds * factor, pairs, reads)


def learnt(truth: StepCost, noise: float, seed: int = 5, count: int = 300) -> StepCosts:
    """After the steps of prompts of all lengths, cut into chunks, with and without decoders beside them, and decode
    steps between; each step is off by up to a part ``noise``."""
    costs, random = StepCosts(PRIOR), Random(seed)
    while count > 0:
        length, start = random.randint(50, 4000), 0
        size = random.choice([64, 128, 256, 512])
        while start < length:
            chunk = min(size, length - start)
            take(costs, truth, chunk, start, random.choice([0, 3]), random.uniform(1 - noise, 1 + noise))
            take(costs, truth, 0, 0, random.randint(1, 20), random.uniform(1 - noise, 1 + noise))
            start += size
            count -= 1
    return costs


def test_before_the_first_step() -> None:
    """It is the prior."""
    assert StepCosts(PRIOR).now == PRIOR


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "truth",
    [
        StepCost(0.03, 0.0007, 4e-7, 4e-7),
        StepCost(0.02, 0.00013, 2e-9, 6e-8),
        StepCost(0.3, 1e-5),
        StepCost(0.002, 0.01),
    ],
)
def test_converges(truth: StepCost, seed: int) -> None:
    """With times off by up to 30 %, a step with a chunk of any size at any place is known to 20 %."""
    found = learnt(truth, 0.3, seed).now
    for rows, start in ((64, 0), (64, 3500), (200, 1000), (512, 0), (512, 1500)):
        pairs = rows * (start + rows / 2)
        expected = truth(rows) + truth.pair_s * pairs
        assert found(rows) + found.pair_s * pairs == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("read_s", [0.0, 3e-7])
@pytest.mark.parametrize("decoded", [0, 60, 400, 3000])
@pytest.mark.parametrize("prompts", [5, 20])
def test_what_chunks_cost_is_not_forgotten(prompts: int, decoded: int, read_s: float) -> None:
    """However many steps decode after prompts of some chunks: neither does the prior come back, nor does what decoders
    read, or attention, stand in for rows."""
    truth, random = StepCost(0.03, 0.0007, 4e-7, read_s), Random(4)
    costs = StepCosts(PRIOR)
    for _ in range(prompts):
        start = 0
        for rows in (64, 130, random.randint(40, 500), random.randint(40, 500)):
            take(costs, truth, rows, start)
            start += rows
        for _ in range(decoded):
            take(costs, truth, 0, 0, random.randint(1, 20))
    found = costs.now
    assert found(512) == pytest.approx(truth(512), rel=0.25)
    assert found.pair_s == pytest.approx(truth.pair_s, rel=0.5)


def test_a_slower_cloud_is_followed() -> None:
    """Three times as slow for good: known within a quarter after four prompts, however long ago those before were."""
    truth = StepCost(0.03, 0.0007, 4e-7, 1e-7)
    costs, random = learnt(truth, 0.0), Random(2)
    for _ in range(4):
        for _ in range(300):
            take(costs, truth, 0, 0, random.randint(1, 20), 3.0)
        for rows, start in ((64, 0), (192, 64), (256, 256), (512, 512), (512, 1024)):
            take(costs, truth, rows, start, 0, 3.0)
    assert costs.now(200) == pytest.approx(3 * truth(200), rel=0.25)


def test_beside_others() -> None:
    """What others read anyway is part of the base."""
    assert StepCost(0.02, 0.001, 1e-7, 1e-6).beside(5000) == StepCost(0.025, 0.001, 1e-7, 1e-6)


def test_one_size_scales_the_prior() -> None:
    """A cloud that is ten times slower than the prior at one size is taken to be so at all."""
    costs = StepCosts(PRIOR)
    costs.observe(100, 10 * PRIOR(100), 0.0, 0.0)
    assert [costs.now(rows) for rows in (1, 512)] == pytest.approx([10 * PRIOR(rows) for rows in (1, 512)], rel=0.01)


def test_attending_that_fades() -> None:
    """A mean of what is attended to that has all but faded is nothing, not a divisor."""
    costs = StepCosts(PRIOR)
    costs.observe(8, PRIOR(8), 7.0, 0.0)
    for _ in range(4000):
        costs.observe(8, PRIOR(8), 0.0, 0.0)
    assert costs.now.pair_s < 1 and costs.now(8) == pytest.approx(PRIOR(8), rel=0.01)


attended = st.floats(0, 1e12)


@given(st.lists(st.tuples(st.integers(-1, 300_000), st.floats(allow_nan=True), attended, attended), max_size=40))
def test_never_less_than_nothing(observed: list[tuple[int, float, float, float]]) -> None:
    """Whatever is observed, however contradictory; what cannot be a step is ignored."""
    costs = StepCosts(PRIOR)
    for step in observed:
        costs.observe(*step)
    found = costs.now
    assert found.base_s > 0 and all(0 <= each < math.inf for each in astuple(found))
