"""What confidence is worth, learned from verdicts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting.calibration import Calibration, usual_chance

weights = st.floats(0, 1)
verdicts = st.lists(st.tuples(weights, st.booleans()), max_size=80)


@given(weights)
def test_without_experience_the_weight_is_the_chance(weight: float) -> None:
    """Also for a source that nobody has seen, beside another that was."""
    calibration = Calibration()
    calibration.seen("other", False, 0.5, False)
    assert calibration.chance("a", False, weight) == weight


@given(weights)
def test_a_network_is_taken_for_modest_until_it_was_seen(weight: float) -> None:
    """Suffixes of the text say what they have seen; and some verdicts count for more than what is usual."""
    calibration = Calibration(usual_chance)
    assert calibration.chance("lookup", False, weight) == weight <= calibration.chance("fused", False, weight) <= 1
    for _ in range(60):
        calibration.seen("fused", False, 0.35, False)
    assert calibration.chance("fused", False, 0.35) < 0.15


@given(verdicts, st.lists(weights, min_size=2, max_size=20))
def test_more_confidence_is_never_worth_less(history: list[tuple[float, bool]], asked: list[float]) -> None:
    """Whatever happened; and it is a chance."""
    calibration = Calibration()
    for weight, accepted in history:
        calibration.seen("a", True, weight, accepted)
    chances = [calibration.chance("a", True, weight) for weight in sorted(asked)]
    assert chances == sorted(chances)
    assert all(0 <= chance <= 1 for chance in chances)


@pytest.mark.parametrize(
    "truth", [lambda weight: weight**3, lambda weight: weight**0.3, lambda weight: 0.03, lambda weight: 0.97]
)
def test_what_confidence_is_worth_is_learned(truth: Callable[[float], float]) -> None:
    """From too sure to too modest: within a tenth on average, where the weight itself is far off."""
    numbers, calibration = random.Random(1), Calibration()
    for _ in range(3_000):
        weight = numbers.random()
        calibration.seen("a", False, weight, numbers.random() < truth(weight))
    middles = [(index + 0.5) / 20 for index in range(20)]
    errors = [abs(calibration.chance("a", False, weight) - truth(weight)) for weight in middles]
    assert sum(errors) / 20 < 0.1 < sum(abs(weight - truth(weight)) for weight in middles) / 20


def test_kinds_do_not_mix() -> None:
    """Neither sources, nor greedy answers and sampled ones."""
    calibration = Calibration()
    for _ in range(50):
        calibration.seen("a", False, 0.55, True)
        calibration.seen("a", True, 0.55, False)
    assert calibration.chance("a", False, 0.55) > 0.9
    assert calibration.chance("a", True, 0.55) < 0.15
    assert calibration.chance("b", False, 0.55) == 0.55


def test_the_past_fades() -> None:
    """What a weight was worth long ago says little now, even where that weight was not asked about since."""
    calibration = Calibration()
    for _ in range(200):
        calibration.seen("a", False, 0.95, False)
    low = calibration.chance("a", False, 0.95)
    for _ in range(1_000):
        calibration.seen("a", False, 0.05, False)
    assert low < 0.15 and calibration.chance("a", False, 0.95) > 0.7
    for _ in range(300):
        calibration.seen("a", False, 0.95, True)
    assert calibration.chance("a", False, 0.95) > 0.9


@pytest.mark.parametrize("weight", [-0.5, 1.5])
def test_weights_out_of_range_count_as_the_nearest(weight: float) -> None:
    """A drafter's rounding must not end an answer."""
    calibration = Calibration()
    calibration.seen("a", False, weight, weight > 1)
    nearest = min(max(weight, 0.0), 1.0)
    assert calibration.chance("a", False, weight) == calibration.chance("a", False, nearest)
    assert calibration.chance("b", False, weight) == nearest
