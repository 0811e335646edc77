"""A search over shares and schemes together, where Algorithm 1 takes one after the other. Pure.

It also has a third scheme, Voltage's, which sends half of what Scheme-2 does and needs all weights of its layers; not
where heads may be left out, which it cannot do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from device_agent.planning.counts import LayerCost, best_counts
from device_agent.planning.galaxy import MODE, capacities, plan_algorithm_1, shifted_plan
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan, Hybrid, Sharded
from device_agent.planning.search import Parts, best_parts
from device_agent.planning.shares import handed_out
from device_agent.planning.task import Task
from device_agent.planning.voltage import fastest_layer

COLUMN_UNITS = 96
"""Columns are moved in about so many units."""

AROUND = 1
"""In the end numbers of layers by scheme that are so far from the expected best are played in full."""

SHORT = (2, 4)
"""Layers of two models that stand for the whole one: what the longer takes more is what further layers take."""

TOO_MUCH_S = 1e9
"""What shares cost with which nothing fits; each byte that lacks costs a second more."""


@dataclass(frozen=True)
class Shares:
    """Who has which groups, columns and rows, in all layers that are shared by heads.

    overlap: whether their tiles' products overlap with the exchange.
    """

    groups: Parts
    columns: Parts
    rows: Parts
    overlap: bool = True


@dataclass(frozen=True)
class _Found:
    """What shares cost, and the numbers of layers by the second and the third scheme that suit them."""

    seconds: float
    counts: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class _Kind:
    """A layer of one scheme, and what a member holds besides its layers."""

    layer: LayerCost
    fixed: tuple[int, ...]


def plan_jointly(task: Task) -> GroupPlan:
    """The fastest plan that was found: never slower than Algorithm 1's, and found where that one fails, too.

    Begins at Algorithm 1's shares and at even ones; then groups, columns and rows are moved in turn, each time with the
    schemes that are best for them. Raises DoesNotFit where none fits.
    """
    search = _Search(task)
    shares = search.best_shares()
    plans = [plan for near in dict.fromkeys([shares, *search.starts]) for plan in search.around(near)]
    lacks = task.lacks(search.plan(shares, 0, 0))
    try:
        plans.append(plan_algorithm_1(task))
    except DoesNotFit as error:
        lacks = lacks or list(error.lacks)
    fitting = [plan for plan in plans if not task.lacks(plan)]
    if not fitting:
        raise DoesNotFit(MODE, lacks)
    return min(fitting, key=task.seconds)


class _Search:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._third = fastest_layer(task)
        self._short = [task.shortened(layers) for layers in SHORT]
        self.starts = self._begun()
        self._found: dict[Shares, _Found] = {}
        self._kinds: dict[tuple[Shares, bool, bool], _Kind] = {}

    def best_shares(self) -> Shares:
        """The cheapest that moving finds, from where it begins."""
        shares = min(self.starts, key=self._seconds)
        shares = min(shares, replace(shares, overlap=False), key=self._seconds)
        while True:
            before = self._seconds(shares)
            shares = self._moved(shares)
            if self._seconds(shares) >= before * (1 - 1e-3):
                return min(shares, replace(shares, overlap=not shares.overlap), key=self._seconds)

    def plan(self, shares: Shares, second: int, third: int, layers: int | None = None) -> GroupPlan:
        """So many layers by Scheme-2, and the last ones by Voltage's, which computes only the rows wanted of them."""
        rows = tuple(float(part) for part in shares.rows)
        one = Hybrid(shares.groups, shares.columns, rows, overlap=shares.overlap)
        two = replace(one, mlp_by_rows=True)
        three = two if self._task.work.prunes else replace(self._third, step=Sharded(shares.groups, shares.columns))
        first = (layers or self._task.shape.layers) - second - third
        made = (two,) * second + (one,) * first + (three,) * third
        return GroupPlan(MODE, self._task.members, self._task.portal, made)

    def around(self, shares: Shares) -> Iterator[GroupPlan]:
        """The plans with about the numbers of layers that are best for these shares."""
        layers = self._task.shape.layers
        second, third = self._best(shares).counts
        for twos in range(max(second - AROUND, 0), min(second + AROUND, layers) + 1):
            for threes in range(max(third - AROUND, 0), min(third + AROUND, layers - twos) + 1):
                yield self.plan(shares, twos, threes)

    def _seconds(self, shares: Shares) -> float:
        return self._best(shares).seconds

    def _best(self, shares: Shares) -> _Found:
        if shares not in self._found:
            self._found[shares] = self._suited(shares)
        return self._found[shares]

    def _suited(self, shares: Shares) -> _Found:
        budgets = {device.name: device.memory_bytes for device in self._task.profile.devices}
        kinds = [self._kind(shares, second, third) for second, third in ((False, False), (True, False), (False, True))]
        fixed = [max(of) for of in zip(*(kind.fixed for kind in kinds), strict=True)]
        room = [budgets[name] - of for name, of in zip(self._task.members, fixed, strict=True)]
        first, second, third = (kind.layer for kind in kinds)
        layers = self._task.shape.layers
        counts = best_counts(layers, first, second, third, room)
        if counts is None:
            missing = [max(layers * of - has, 0) for of, has in zip(first.held, room, strict=True)]
            return _Found(TOO_MUCH_S + sum(missing))
        ones = layers - sum(counts)
        return _Found(ones * first.seconds + counts[0] * second.seconds + counts[1] * third.seconds, counts)

    def _kind(self, shares: Shares, second: bool, third: bool) -> _Kind:
        """What a layer takes among many of its kind: the second scheme or the third, else the first."""
        if not self._task.work.new:
            # Without steps the second has no use for columns, and the third none for whatever is shared by heads.
            if second:
                shares = replace(shares, columns=handed_out(self._task.shape.intermediate, [1.0] * len(shares.columns)))
            if third:
                shares = self.starts[0]
        key = shares, second, third
        if key not in self._kinds:
            plans = [self.plan(shares, layers * second, layers * third, layers) for layers in SHORT]
            seconds = [task.seconds(plan) for task, plan in zip(self._short, plans, strict=True)]
            held = [task.held(plan) for task, plan in zip(self._short, plans, strict=True)]
            more = SHORT[1] - SHORT[0]
            grown = [(held[1][name].growing - held[0][name].growing) / more for name in self._task.members]
            fixed = tuple(held[0][name].ends + held[0][name].buffers for name in self._task.members)
            self._kinds[key] = _Kind(LayerCost((seconds[1] - seconds[0]) / more, tuple(grown)), fixed)
        return self._kinds[key]

    def _begun(self) -> tuple[Shares, ...]:
        task, shape = self._task, self._task.shape
        attention, mlp, by_rows = capacities(task)
        shifted = shifted_plan(task).layers[0]
        assert isinstance(shifted, Hybrid)
        even = [1.0] * len(task.members)

        def shares(groups: Sequence[float], columns: Sequence[float], rows: Sequence[float]) -> Shares:
            return Shares(
                handed_out(shape.kv_heads, groups),
                handed_out(shape.intermediate, columns),
                handed_out(task.work.rows, rows),
            )

        return (
            shares(shifted.groups, shifted.columns, by_rows),
            shares(attention, mlp, by_rows),
            shares(even, even, even),
        )

    def _moved(self, shares: Shares) -> Shares:
        """Better shares: of groups, then of columns, then of rows."""
        shape, starts = self._task.shape, (shares, *self.starts)
        parts = best_parts(
            shape.kv_heads,
            [start.groups for start in starts],
            lambda parts: self._seconds(replace(shares, groups=parts)),
        )
        shares = replace(shares, groups=parts)
        units = min(shape.intermediate, COLUMN_UNITS)
        parts = best_parts(
            units,
            [handed_out(units, start.columns) for start in starts],
            lambda parts: self._seconds(replace(shares, columns=handed_out(shape.intermediate, parts))),
        )
        shares = min(shares, replace(shares, columns=handed_out(shape.intermediate, parts)), key=self._seconds)
        parts = best_parts(
            self._task.work.rows,
            [start.rows for start in starts],
            lambda parts: self._seconds(replace(shares, rows=parts)),
        )
        return replace(shares, rows=parts)
