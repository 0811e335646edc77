"""How one layer at its home would best lend: heads, their projections, columns of the MLP, or nothing. Pure.

Home has all rows before and behind each half of such a layer, so heads and columns are searched for apart, and what is
best for one layer is best for all at that home.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from device_agent.planning.course import Course
from device_agent.planning.forms import Lent, Whole
from device_agent.planning.holding import HeldRows
from device_agent.planning.lan import Lan
from device_agent.planning.lending import run_lent
from device_agent.planning.ratios import by_speed
from device_agent.planning.search import Parts, best_parts
from device_agent.planning.shares import handed_out
from device_agent.planning.task import Task

COLUMN_UNITS = 96
"""Columns are lent in about so many units."""


@dataclass(frozen=True)
class Lending:
    """A way to lend.

    Attributes:
        name: in words.
        heads, projections, columns: what may be lent; projections with their heads.
        steps_apart: whether steps of few rows take another way than prompts: at home where attention is lent, by heads
            and columns where projections are. Else each step asks the lenders.
    """

    name: str
    heads: bool
    projections: bool
    columns: bool
    steps_apart: bool


WAYS = tuple(
    Lending(f"lending {what}{', steps apart' if apart else ''}", heads, projections, columns, apart)
    for what, heads, projections, columns in (
        ("attention", True, False, False),
        ("attention and columns", True, False, True),
        ("projections", True, True, False),
        ("projections and columns", True, True, True),
        ("columns", False, False, True),
    )
    for apart in (False, True)
)


@dataclass(frozen=True)
class LentLayer:
    """The best layer of a way at one home, and seconds of all the work in it."""

    layer: Lent | Whole
    seconds: float


class LendingSearch:
    """The best layers for one task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._lan = Lan(task.profile, task.members, task.portal)
        self._known: dict[tuple[object, ...], Parts] = {}

    def best(self, home: int, way: Lending) -> LentLayer:
        """Of a way at a home; whole where nothing lent pays."""
        shape = self._task.shape
        groups = self._alone(home, shape.kv_heads)
        columns = self._alone(home, shape.intermediate)
        layer = Lent(home, groups, columns, way.projections, int(way.steps_apart))
        if way.heads:
            layer = replace(layer, groups=self._groups(layer))
        if way.columns:
            layer = replace(layer, columns=self._columns(layer))
        if (layer.groups, layer.columns) == (groups, columns):
            return LentLayer(Whole(home), self.whole_s(home))
        return LentLayer(layer, self.seconds(layer))

    def whole_s(self, home: int) -> float:
        """All the work in a layer of which nothing is lent."""
        shape = self._task.shape
        return self.seconds(Lent(home, self._alone(home, shape.kv_heads), self._alone(home, shape.intermediate)))

    def seconds(self, layer: Lent) -> float:
        """All the work in one such layer among others of its home; steps by heads and columns are taken as if lent."""
        work = self._task.work
        found = self._forward(layer, work.rows, 0)
        if work.new:
            here = self._alone(layer.home, sum(layer.groups)), self._alone(layer.home, sum(layer.columns))
            step = replace(layer, groups=here[0], columns=here[1]) if layer.copies else layer
            found += work.new * self._forward(step, work.sessions, work.step.cached)
        return found

    def _forward(self, layer: Lent, rows: int, cached: int) -> float:
        course = Course(self._lan, 1)
        on = HeldRows(self._task.shape, self._lan, course, self._task.costs(), rows, cached)
        on.held = layer.home
        run_lent(on, 0, layer, rows)
        return course.at[layer.home]

    def _groups(self, layer: Lent) -> Parts:
        def parts() -> Parts:
            return self._parted(layer.home, sum(layer.groups), lambda groups: replace(layer, groups=groups))

        return self._once(("groups", layer.home, layer.projections, layer.few_rows), parts)

    def _columns(self, layer: Lent) -> Parts:
        """Whatever heads are lent: so they are all at home here."""
        shape, home = self._task.shape, layer.home
        alone = replace(layer, groups=self._alone(home, shape.kv_heads))

        def parts() -> Parts:
            units = min(shape.intermediate, COLUMN_UNITS)
            found = self._parted(
                home, units, lambda parts: replace(alone, columns=handed_out(shape.intermediate, parts))
            )
            return handed_out(shape.intermediate, found)

        return self._once(("columns", home, layer.copies), parts)

    def _parted(self, home: int, units: int, layer: Callable[[Parts], Lent]) -> Parts:
        speeds = by_speed(self._task)
        mostly = [speed * (2 if at == home else 1) for at, speed in enumerate(speeds)]
        starts = [self._alone(home, units), handed_out(units, speeds), handed_out(units, mostly)]
        return best_parts(units, starts, lambda parts: self.seconds(layer(parts)))

    def _once(self, key: tuple[object, ...], parts: Callable[[], Parts]) -> Parts:
        if key not in self._known:
            self._known[key] = parts()
        return self._known[key]

    def _alone(self, home: int, units: int) -> Parts:
        return tuple(units if at == home else 0 for at in range(len(self._task.members)))
