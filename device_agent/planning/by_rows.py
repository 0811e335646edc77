"""A layer shared by rows, on the clocks: Voltage and sequence parallelism. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from device_agent.planning.holding import HeldRows, last_of
from device_agent.planning.plan import ByRows
from device_agent.planning.shares import handed_out, spans


def run_by_rows(on: HeldRows, number: int, layer: ByRows, wanted: int) -> None:
    """Plays layer `number`; of its rows only the last `wanted` are computed further than to keys and values."""
    parts = handed_out(on.rows, layer.rows)
    active = last_of(parts, wanted)
    costs, groups = on.costs, on.shape.kv_heads
    if layer.keys_values or layer.prefix:
        # Keys and values are made of a member's own rows, so it must have these, and not others.
        on.to_parts(layer.rows)
        if on.held not in (None, parts):
            on.gathered([0.0] * len(on.members), None)
        (_prefix if layer.prefix else _keys_values)(on, number, layer, parts, active)
    else:
        _hidden(on, number, layer, parts, active)
    on.course.compute([costs.of(member, "output", active[member], groups) for member in on.members])
    on.norm(active)
    for _ in range(on.shape.attentions(number) - 1):
        # An encoder's rows were gathered once and are everywhere.
        on.course.compute([costs.of(member, "key_value", on.read, groups) for member in on.members])
        on.course.compute([costs.of(member, "query", active[member], groups) for member in on.members])
        on.course.compute([costs.of(member, "attend", active[member], on.source, groups) for member in on.members])
        on.course.compute([costs.of(member, "output", active[member], groups) for member in on.members])
        on.norm(active)
    if layer.pieces > 1:
        few = [rows / layer.pieces for rows in active]
        piece = [costs.mlp(member, few[member]) + costs.of(member, "norm", few[member]) for member in on.members]
        on.course.compute([layer.pieces * seconds for seconds in piece])
        on.early = [(layer.pieces - 1) * seconds for seconds in piece]
    else:
        on.course.compute([costs.mlp(member, active[member]) for member in on.members])
        on.norm(active)
        on.early = None
    on.held = active


def _hidden(on: HeldRows, number: int, layer: ByRows, parts: Sequence[int], active: Sequence[int]) -> None:
    """Eq. 3, or Eq. 8 where a member is reordered: all hidden states come.

    By Eq. 3 each tile's keys and values are projected as it comes, by Eq. 8 it is attended to, and the results merged.
    """
    costs, groups = on.costs, on.shape.kv_heads
    reordered = layer.reordered or (False,) * len(on.members)

    def whole_of(member: int) -> float:
        if reordered[member]:
            return costs.of(member, "reordered", active[member], ends[member])
        query = costs.of(member, "query", active[member], groups)
        return query + costs.of(member, "key_value", on.rows, groups)

    def of_tile(member: int, tile: int, rows: int) -> float:
        """Piece by piece, as they come."""
        own = tile == member
        if not reordered[member]:
            query = costs.of(member, "query", active[member], groups) if own else 0.0
            return query + layer.pieces * costs.of(member, "key_value", rows / layer.pieces, groups)
        if on.shape.causal and tile > member:
            return 0.0
        # Further positions cost what they add: a member's own projections are made once.
        before = 0 if own else parts[member]
        more = costs.of(member, "reordered", active[member], before + rows)
        more -= costs.of(member, "reordered", active[member], before) if before else 0.0
        return max(more, 0.0) + (layer.pieces - own) * _merge(on, member, active[member])

    on.to_parts(layer.rows)
    ends = [span.stop if on.shape.causal else on.rows for span in spans(parts)]
    whole = [whole_of(member) for member in on.members]
    tiles = None
    if layer.overlap and isinstance(on.held, tuple):
        tiles = [[of_tile(member, tile, rows) for tile, rows in enumerate(on.held)] for member in on.members]
    on.gathered(whole, tiles, layer.pieces if on.held == tuple(parts) else 1)
    on.course.layer = number
    seen = [0.0 if reordered[m] else on.cached + _seen(on, parts, m, on.rows) for m in on.members]
    on.course.compute([costs.of(m, "attend", active[m], seen[m], groups) for m in on.members])


def _keys_values(on: HeldRows, number: int, layer: ByRows, parts: Sequence[int], active: Sequence[int]) -> None:
    """Each projects its own rows, and their keys and values are gathered; attention merges tile by tile."""
    costs, groups = on.costs, on.shape.kv_heads
    on.course.layer = number
    on.course.compute([costs.of(member, "query", active[member], groups) for member in on.members])
    on.course.compute([costs.of(member, "key_value", parts[member], groups) for member in on.members])

    def tile(member: int, other: int) -> float:
        visible = _visible(on, parts, member, other) + (on.cached if member == other else 0)
        return costs.of(member, "attend", active[member], visible, groups)

    whole = [costs.of(m, "attend", active[m], on.cached + _seen(on, parts, m, on.rows), groups) for m in on.members]
    tiles = [[tile(member, other) for other in on.members] for member in on.members]
    on.course.gather([rows * _kv_bytes(on) for rows in parts], whole, tiles if layer.overlap else None)


def _prefix(on: HeldRows, number: int, layer: ByRows, parts: Sequence[int], active: Sequence[int]) -> None:
    """Each gets what comes before its rows, and waits for nobody behind. What is its own it computes meanwhile."""
    costs, groups = on.costs, on.shape.kv_heads
    reordered = layer.reordered or (False,) * len(on.members)
    row_bytes = _kv_bytes(on) if layer.keys_values else on.shape.row_bytes
    sizes = [[parts[i] * row_bytes if j > i else 0.0 for j in on.members] for i in on.members]
    kept, before, attend = [], [], []
    for m, span in enumerate(spans(parts)):
        if reordered[m]:
            kept.append(0.0)
            before.append(0.0)
            merges = m * _merge(on, m, active[m]) if layer.overlap else 0.0
            attend.append(costs.of(m, "reordered", active[m], span.stop) + merges)
        else:
            together = not layer.overlap and not layer.keys_values
            kept.append(0.0 if together else costs.of(m, "key_value", parts[m], groups))
            before.append(costs.of(m, "key_value", span.stop, groups) if together else 0.0)
            if layer.overlap and not layer.keys_values:
                before[m] = sum(costs.of(m, "key_value", rows, groups) for rows in parts[:m])
            query = costs.of(m, "query", active[m], groups)
            attend.append(query + costs.of(m, "attend", active[m], _seen(on, parts, m, span.stop), groups))
    if layer.keys_values:
        on.course.layer = number
        on.course.compute(kept)
    begins = on.course.at[: len(on.members)]
    if not layer.keys_values:
        on.course.compute(kept)
    if layer.keys_values or on.held is not None:
        on.course.spread(sizes, begins)
    on.course.layer = number
    on.course.compute(before)
    on.course.compute(attend)


def _merge(on: HeldRows, member: int, rows: float) -> float:
    """Seconds in which Eq. 8's results for one more tile are added to those before: a hidden state for each row and
    head, so about what a norm of as many rows takes."""
    return on.costs.of(member, "norm", on.shape.heads * rows)


def _kv_bytes(on: HeldRows) -> int:
    return 2 * on.shape.kv_size * on.shape.dtype_bytes


def _seen(on: HeldRows, parts: Sequence[int], member: int, rows: int) -> float:
    """Positions that a member's rows see of the first `rows`, in the mean."""
    if not on.shape.causal:
        return rows
    return spans(parts)[member].start + (parts[member] + 1) / 2


def _visible(on: HeldRows, parts: Sequence[int], member: int, other: int) -> float:
    """Positions of another's tile that a member's rows see, in the mean."""
    if not on.shape.causal or other < member:
        return parts[other]
    return (parts[member] + 1) / 2 if other == member else 0.0
