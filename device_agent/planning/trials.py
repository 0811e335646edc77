"""Other ways to run what the members of a group hold already, and which of them are worth trying on real rows. Pure.

What overlaps with exchanges is predicted worst: what it costs depends on who else wants the CPU just then. To run the
same weights in another way needs no loading, so a group tries it when it forms, where predictions are too near. Layers
by rows need no loading for other shares of the rows either: there the simplest way, Algorithm 2 of Voltage as it is
published, is tried beside what was found to be better on paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import TypeVar

from device_agent.planning.modes import SAME
from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Whole
from device_agent.planning.ratios import by_speed
from device_agent.planning.task import Task

USUAL_ERROR = 1.0
"""What is predicted to take at most so much more than the best may well be the best: plans have taken up to 1.95 times
what was predicted of them."""

MOST_TRIED = 4

TRIAL_S = 2.0
"""All runs of a trial together take about so long, as predicted."""

MOST_S = 8.0
"""Fewer manners are tried where all runs of the fewest layers would take longer, as predicted; two at least."""

RUNS = 3
"""Of each manner, besides a first one that does not count."""

UNSURE = 0.15
"""Of fewer runs chance may make as much: another manner than the plan's has to be faster by more."""

LEAST_LAYERS = 2

EVERY_ROW = 1 << 20
"""More rows than any step has."""

FASTEST = 100
"""Share of the rows of who is fastest; of the others in whole numbers beside it."""

Anything = TypeVar("Anything")


@dataclass(frozen=True)
class Manner:
    """How layers that are shared by heads or by rows are run.

    Attributes:
        overlap: whether products begin before all tiles are there; None: as planned.
        by_columns: whether MLPs that were planned by rows (Scheme-2) are computed by columns (Scheme-1).
        few: whether any number of rows is computed as few rows are: by heads and columns, or at one member.
        shares: what layers by rows are shared by, with hidden states for everybody and nothing overlapped (Voltage,
            Algorithm 2); (): as planned.
    """

    overlap: bool | None = None
    by_columns: bool = False
    few: bool = False
    shares: tuple[int, ...] = ()

    def of(self, layer: Layer) -> Layer:
        """A layer of a plan in this manner; its members hold what they need for it.

        Raises ValueError where its shares are not those of as many members.
        """
        if not isinstance(layer, (Hybrid, ByRows)):
            return layer
        if self.few:
            return replace(layer, few_rows=EVERY_ROW)
        if self.shares and isinstance(layer, ByRows):
            if len(self.shares) != len(layer.rows) or min(self.shares) < 1:
                raise ValueError(f"{list(self.shares)} are no shares of {len(layer.rows)} members")
            rows = tuple(map(float, self.shares))
            return replace(layer, rows=rows, keys_values=False, prefix=False, overlap=False, pieces=1)
        overlap = layer.overlap if self.overlap is None else self.overlap
        if isinstance(layer, ByRows):
            return replace(layer, overlap=overlap, pieces=layer.pieces if overlap else 1)
        return replace(layer, overlap=overlap, mlp_by_rows=layer.mlp_by_rows and not self.by_columns)

    def words(self, plan: GroupPlan) -> str:
        """What it is, of a plan."""
        if self == Manner():
            return "as planned"
        layers = [layer for layer in plan.layers if isinstance(layer, (Hybrid, ByRows))]
        if self.few:
            alone = all(isinstance(layer.step, Whole) for layer in layers)
            return "at one device" if alone else "by heads and columns"
        if self.shares:
            return "rows by speed, to everybody, nothing overlapped"
        said = ["MLP by columns"] * self.by_columns
        said += [] if self.overlap is None else ["overlapped" if self.overlap else "nothing overlapped"]
        return ", ".join(said)


@dataclass(frozen=True)
class Trial:
    """What a group tries when it forms.

    Attributes:
        manners: the plan's own first.
        words: what each is.
        rows: of the text that is run.
        layers: how many of the plan's are run, see `some`.
    """

    manners: tuple[Manner, ...]
    words: tuple[str, ...]
    rows: int
    layers: int

    def chosen(self, seconds: Mapping[Manner, Sequence[float]]) -> Manner:
        """The fastest in the median of its runs; of those that are as fast, as far as these say, the plan's own."""
        medians = {manner: median(seconds[manner]) for manner in self.manners}
        best = min(self.manners, key=lambda manner: medians[manner])
        margin = SAME if min(map(len, seconds.values())) >= RUNS else UNSURE
        return self.manners[0] if medians[self.manners[0]] <= medians[best] * (1 + margin) else best


def trial_of(task: Task, plan: GroupPlan) -> Trial | None:
    """What is to be tried of a plan; None where nothing is: there is one way, or all others are predicted to be slower
    by more than predictions err."""
    if plan.streams or task.shape.cross_layers or len(plan.members) == 1:
        return None
    seconds: dict[Manner, float] = {}
    known: dict[tuple[Layer, ...], Manner] = {}
    ways = product((False, True), (False, True), (None, False, True))
    every = [Manner(overlap, by_columns, few) for few, by_columns, overlap in ways]
    for manner in [*every, Manner(shares=_shares(task, plan))]:
        made = in_manner(plan, manner)
        if manner.shares and task.lacks(made):
            continue  # Where prefixes were enough, all rows' keys and values need more memory.
        if known.setdefault(made.layers, manner) == manner:
            seconds[manner] = task.prefill(made).seconds
    most = min(seconds.values()) * (1 + USUAL_ERROR)
    near = sorted((manner for manner in seconds if seconds[manner] <= most), key=seconds.__getitem__)
    manners = tuple(dict.fromkeys([Manner(), *near]))[:MOST_TRIED]
    if len(manners) == 1:
        return None
    least = (1 + RUNS) * min(1.0, LEAST_LAYERS / len(plan.layers))
    while len(manners) > 2 and least * sum(seconds[manner] for manner in manners) > MOST_S:
        manners = manners[:-1]
    all_s = (1 + RUNS) * sum(seconds[manner] for manner in manners)
    layers = min(len(plan.layers), max(LEAST_LAYERS, int(len(plan.layers) * TRIAL_S / all_s)))
    return Trial(manners, tuple(manner.words(plan) for manner in manners), task.work.rows, layers)


def _shares(task: Task, plan: GroupPlan) -> tuple[int, ...]:
    """Of the rows, by the speeds of the plan's members; nobody has none."""
    speeds = by_speed(task, plan.members)
    return tuple(max(1, round(FASTEST * speed / max(speeds))) for speed in speeds)


def in_manner(plan: GroupPlan, manner: Manner) -> GroupPlan:
    """All layers of a plan."""
    made = {layer: manner.of(layer) for layer in dict.fromkeys(plan.layers)}
    return replace(plan, layers=tuple(made[layer] for layer in plan.layers))


def some(layers: Sequence[Anything], count: int) -> list[Anything]:
    """So many of the layers, taken evenly from all; 0: all."""
    count = min(count, len(layers)) or len(layers)
    return [layers[(2 * at + 1) * len(layers) // (2 * count)] for at in range(count)]
