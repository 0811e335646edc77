"""Prompt lengths as a data set has them: few draws already have its mean, 90th percentile and deviation. Pure.

The paper tells three figures of each data set (Table 3) and nothing else. The quantile function here is the simplest
that meets all three: straight lines from the least length to the median, on to the 90th percentile, on to the greatest.
The paper's percentile is one of its corners, and mean and standard deviation settle median and greatest.

Lengths are taken in the middle of equal strata of this function and shuffled, so draws of another seed are the same
lengths in another order, and what differs between two runs is not who happened to draw the long prompts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SHARES: Final = (0.5, 0.4, 0.1)
"""Of all prompts: up to the median, from there to the 90th percentile, beyond it."""

_HALVINGS: Final = 60

POSITIONS: Final = 2048
"""Of the demo model, for prompt and answer; the wide one has a few more."""


@dataclass(frozen=True)
class Dataset:
    """What is known of a data set's prompts, in tokens.

    Attributes:
        least: shortest prompt; ours, since the paper does not tell.
        mean, p90, std: Table 3.
    """

    name: str
    least: float
    mean: float
    p90: float
    std: float


SPECBENCH: Final = Dataset("specbench", 24, 351.2, 891.0, 397.3)
CNN_DM: Final = Dataset("cnndm", 200, 1036.6, 1772.0, 511.8)
DATASETS: Final = {each.name: each for each in (SPECBENCH, CNN_DM)}


def corners(dataset: Dataset) -> tuple[float, float, float, float]:
    """Lengths at the quantiles 0, 0.5, 0.9 and 1 that give the data set's mean and standard deviation.

    Raises ValueError where no such lengths rise from each to the next.
    """
    low, high = dataset.p90, dataset.p90 + 20 * dataset.std
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # At the same mean a longer greatest makes the median shorter: both widen the spread.
        low, high = (middle, high) if _deviation(_with_most(dataset, middle)) < dataset.std else (low, middle)
    found = _with_most(dataset, (low + high) / 2)
    if sorted(found) != list(found) or not math.isclose(_deviation(found), dataset.std, rel_tol=1e-6):
        raise ValueError(f"no quantile function of three straight lines is like {dataset}")
    return found


def draw(dataset: Dataset, count: int, seed: int, most: int = 0) -> list[int]:
    """``count`` lengths in tokens, in an order of ``seed``, none above ``most``; 0: whatever comes."""
    lengths = [min(each, most) if most else each for each in _strata(dataset, count)]
    random.Random(seed).shuffle(lengths)
    return lengths


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value at ``share`` of the way through, straight lines between neighbours. Raises ValueError for none."""
    if not ascending:
        raise ValueError("no values to take a quantile of")
    place = share * (len(ascending) - 1)
    below = min(int(place), max(0, len(ascending) - 2))
    above = min(below + 1, len(ascending) - 1)
    # This form never leaves the two neighbours by rounding, as adding a part of their difference may.
    part = place - below
    return min(max((1 - part) * ascending[below] + part * ascending[above], ascending[below]), ascending[above])


def _strata(dataset: Dataset, count: int) -> list[int]:
    least, median, p90, most = corners(dataset)
    lines = ((0.0, 0.5, least, median), (0.5, 0.9, median, p90), (0.9, 1.0, p90, most))
    lengths = []
    for number in range(count):
        share = (number + 0.5) / count
        begin, end, shortest, longest = next(line for line in lines if share <= line[1])
        lengths.append(round(shortest + (share - begin) / (end - begin) * (longest - shortest)))
    return lengths


def _with_most(dataset: Dataset, most: float) -> tuple[float, float, float, float]:
    """Corners with this greatest length and the data set's mean, which leaves one median."""
    first, second, third = _SHARES
    rest = dataset.mean - (first * dataset.least + second * dataset.p90 + third * (dataset.p90 + most)) / 2
    return dataset.least, rest / ((first + second) / 2), dataset.p90, most


def _deviation(found: tuple[float, float, float, float]) -> float:
    pairs = list(zip(_SHARES, found[:-1], found[1:], strict=True))
    mean = sum(share * (a + b) / 2 for share, a, b in pairs)
    square = sum(share * (a * a + a * b + b * b) / 3 for share, a, b in pairs)
    return math.sqrt(max(0.0, square - mean * mean))
