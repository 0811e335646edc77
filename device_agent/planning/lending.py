"""A layer of which heads or columns are lent, on the clocks: EdgeFormer's collaborative attention. Pure.

Eq. 3 to 11 leave out the MLP, context lengths and bytes; here every part is what was measured, and what overlaps does.
"""

from __future__ import annotations

from device_agent.planning.forms import Lent
from device_agent.planning.holding import HeldRows


def run_lent(on: HeldRows, number: int, layer: Lent) -> None:
    """Plays layer `number`: its rows come home, and are at home behind it."""
    home = layer.home
    on.to_one(home, on.rows)
    on.course.layer = number
    on.compute_at(home, on.costs.of(home, "norm", on.rows))
    (_projections_lent if layer.projections else _attention_lent)(on, layer)
    on.compute_at(home, on.costs.of(home, "norm", on.rows))
    _columns_lent(on, layer)


def _attention_lent(on: HeldRows, layer: Lent) -> None:
    """Eq. 18 to 22: home projects what it lends and sends it, before its own heads; what comes back it multiplies by
    the lent heads' part of the output projection."""
    home, costs, shape = layer.home, on.costs, on.shape
    lent = [member for member in on.members if member != home and layer.groups[member]]
    head_bytes = on.rows * shape.head_dim * shape.dtype_bytes
    for member in lent:
        groups = layer.groups[member]
        on.compute_at(home, costs.project(home, on.rows, groups))
        on.course.send(home, {member: groups * (shape.heads_per_group + 2) * head_bytes})
        on.compute_at(member, costs.of(member, "attend", on.rows, on.seen, groups))
    on.compute_at(home, costs.attention(home, on.rows, on.seen, layer.groups[home]))
    for member in sorted(lent, key=lambda member: on.course.at[member]):
        groups = layer.groups[member]
        on.course.send(member, {home: groups * shape.heads_per_group * head_bytes})
        on.compute_at(home, costs.of(home, "output", on.rows, groups))


def _projections_lent(on: HeldRows, layer: Lent) -> None:
    """Normed rows go to who has weights of some heads, and sums of their output come back."""
    costs = on.costs
    seconds = [costs.attention(member, on.rows, on.seen, layer.groups[member]) for member in on.members]
    _summed(on, layer.home, layer.groups, seconds)


def _columns_lent(on: HeldRows, layer: Lent) -> None:
    """The MLP; where columns are lent, rows go there and sums come back."""
    costs = on.costs
    seconds = [
        costs.of(member, "up", on.rows, columns) + costs.of(member, "down", on.rows, columns)
        for member, columns in enumerate(layer.columns)
    ]
    _summed(on, layer.home, layer.columns, seconds)


def _summed(on: HeldRows, home: int, units: tuple[int, ...], seconds: list[float]) -> None:
    """Rows to each who has units, its product with them, home's own meanwhile, and the partial sums back."""
    row_bytes = on.rows * on.shape.row_bytes
    lent = [member for member in on.members if member != home and units[member]]
    for member in lent:
        on.course.send(home, {member: row_bytes})
    on.course.compute(seconds)
    for member in sorted(lent, key=lambda member: on.course.at[member]):
        on.course.send(member, {home: row_bytes})
