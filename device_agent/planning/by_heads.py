"""A layer shared by heads and columns, on the clocks: tensor parallelism and Galaxy+'s two schemes. Pure."""

from __future__ import annotations

from typing import Literal

from device_agent.planning.holding import HeldRows
from device_agent.planning.plan import Hybrid, Sharded
from device_agent.planning.shares import handed_out, spans

Attends = Literal["own", "read", ""]
"""To what rows attend: their own sequence, what an encoder has read, nothing."""


def run_by_heads(on: HeldRows, number: int, layer: Sharded | Hybrid) -> None:
    """Plays layer `number`."""
    costs = on.costs
    on.reads.begin(on.course, number, "attention")
    _widened(on, "project", layer.groups, layer)
    on.course.layer = number
    _summed(on, "output", layer.groups, layer, attends="own")
    on.reads.end(on.course, number, "attention")
    for _ in range(on.shape.attentions(number) - 1):
        on.course.compute([costs.of(member, "key_value", on.read, layer.groups[member]) for member in on.members])
        _widened(on, "query", layer.groups, layer)
        _summed(on, "output", layer.groups, layer, attends="read")
    on.reads.begin(on.course, number, "mlp")
    if isinstance(layer, Hybrid) and layer.mlp_by_rows:
        parts = handed_out(on.rows, layer.rows)
        on.course.compute([costs.mlp(member, parts[member]) for member in on.members])
        on.norm(parts)
    else:
        _widened(on, "up", layer.columns, layer)
        _summed(on, "down", layer.columns, layer)
    on.reads.end(on.course, number, "mlp")


def _widened(on: HeldRows, part: str, units: tuple[int, ...], layer: Sharded | Hybrid) -> None:
    """All rows at every member, and a block's first product."""
    if isinstance(layer, Hybrid):
        on.to_parts(layer.rows)
    else:
        on.to_parts_or_all()
    tiles = None
    if isinstance(layer, Hybrid) and layer.overlap and isinstance(on.held, tuple):
        tiles = on.costs.tiles(part, units, on.held)
    on.gathered([of[0] for of in on.costs.tiles(part, units, (on.rows,))], tiles)


def _summed(on: HeldRows, part: str, units: tuple[int, ...], layer: Sharded | Hybrid, attends: Attends = "") -> None:
    """A block's last product, whose results are partial sums; their combination, and the norm behind it.

    attends: what attention comes before the product: a tile's rows attend when it is the tile's turn.
    """
    whole = [of[0] for of in _products(on, part, units, (on.rows,), attends)]
    if isinstance(layer, Sharded):
        on.course.compute(whole)
        on.course.all_reduce(on.rows * on.shape.row_bytes)
        on.norm([on.rows] * len(on.members))
        return
    parts = handed_out(on.rows, layer.rows)
    tiles = _products(on, part, units, parts, attends) if layer.overlap else None
    on.course.scatter([rows * on.shape.row_bytes for rows in parts], whole, tiles)
    on.held = parts
    on.norm(parts)


def _products(
    on: HeldRows, part: str, units: tuple[int, ...], parts: tuple[int, ...], attends: Attends
) -> list[list[float]]:
    """Seconds of each member's units with each tile of rows."""
    products = on.costs.tiles(part, units, parts)
    if not attends:
        return products
    seen = [on.cached + (span.start + (len(span) + 1) / 2 if on.shape.causal else on.rows) for span in spans(parts)]
    if attends == "read":
        seen = [on.source for _ in parts]
    return [
        [
            product + on.costs.of(member, "attend", rows, positions, units[member])
            for product, rows, positions in zip(of, parts, seen, strict=True)
        ]
        for member, of in enumerate(products)
    ]
