"""A layer of which heads or columns are lent, on the clocks: EdgeFormer's collaborative attention. Pure.

Eq. 3 to 11 leave out the MLP, context lengths and bytes; here every part is what was measured, and what overlaps does.
"""

from __future__ import annotations

from device_agent.planning.forms import Lent
from device_agent.planning.holding import HeldRows


def run_lent(on: HeldRows, number: int, layer: Lent, wanted: int) -> None:
    """Plays layer `number`: its rows come home, and the last `wanted` of them are at home behind it. Of the others only
    queries, keys and values are made."""
    home = layer.home
    on.to_one(home, on.rows)
    on.course.layer = number
    on.compute_at(home, on.costs.of(home, "norm", on.rows))
    (_projections_lent if layer.projections else _attention_lent)(on, layer, wanted)
    on.compute_at(home, on.costs.of(home, "norm", wanted))
    _columns_lent(on, layer, wanted)


def _attention_lent(on: HeldRows, layer: Lent, wanted: int) -> None:
    """Eq. 18 to 22: home projects what it lends and sends it, before its own heads; what comes back it multiplies by
    the lent heads' part of the output projection."""
    home, costs, shape = layer.home, on.costs, on.shape
    lent = [member for member in on.members if member != home and layer.groups[member]]
    head_bytes = shape.head_dim * shape.dtype_bytes
    seen = _seen(on, wanted)
    for member in lent:
        groups = layer.groups[member]
        on.compute_at(home, costs.project(home, on.rows, groups))
        on.course.send(home, {member: on.rows * groups * (shape.heads_per_group + 2) * head_bytes})
        on.compute_at(member, costs.of(member, "attend", wanted, seen, groups))
    on.compute_at(home, _attention(on, home, layer.groups[home], wanted))
    for member in sorted(lent, key=lambda member: on.course.at[member]):
        groups = layer.groups[member]
        on.course.send(member, {home: wanted * groups * shape.heads_per_group * head_bytes})
        on.compute_at(home, costs.of(home, "output", wanted, groups))


def _projections_lent(on: HeldRows, layer: Lent, wanted: int) -> None:
    """Normed rows go to who has weights of some heads, and sums of their output come back."""
    seconds = [_attention(on, member, layer.groups[member], wanted) for member in on.members]
    _summed(on, layer.home, layer.groups, seconds, (on.rows, wanted))


def _columns_lent(on: HeldRows, layer: Lent, wanted: int) -> None:
    """The MLP; where columns are lent, rows go there and sums come back."""
    costs = on.costs
    seconds = [
        costs.of(member, "up", wanted, columns) + costs.of(member, "down", wanted, columns)
        for member, columns in enumerate(layer.columns)
    ]
    _summed(on, layer.home, layer.columns, seconds, (wanted, wanted))


def _summed(on: HeldRows, home: int, units: tuple[int, ...], seconds: list[float], rows: tuple[int, int]) -> None:
    """So many rows to each who has units, its product with them, home's own meanwhile, and partial sums of so many
    back."""
    lent = [member for member in on.members if member != home and units[member]]
    for member in lent:
        on.course.send(home, {member: rows[0] * on.shape.row_bytes})
    on.course.compute(seconds)
    for member in sorted(lent, key=lambda member: on.course.at[member]):
        on.course.send(member, {home: rows[1] * on.shape.row_bytes})


def _attention(on: HeldRows, member: int, groups: int, wanted: int) -> float:
    """Projections of all rows, attention and output of the last."""
    costs = on.costs
    found = costs.project(member, on.rows, groups) + costs.of(member, "attend", wanted, _seen(on, wanted), groups)
    return found + costs.of(member, "output", wanted, groups)


def _seen(on: HeldRows, wanted: int) -> float:
    """Positions that the last rows attend to, in the mean."""
    return on.cached + on.rows - ((wanted - 1) / 2 if on.shape.causal else 0)
