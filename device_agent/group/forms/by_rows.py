"""A layer by rows (Voltage, Algorithm 2): each member has all of it and computes some rows, from every row's keys and
values.

What the members exchange is the rows behind the layer's first norm, of which each projects all keys and values (Eq. 3)
or, in one-shot work, none (Eq. 8); or the keys and values themselves. The residual never travels. Behind it every
member has all keys and values, so steps of few rows go on from them; what such steps store is not everywhere, and
``catch_up`` brings it there before rows are shared again.
"""

from __future__ import annotations

from functools import reduce

import torch

from device_agent.group.forms.coming import ComingRows
from device_agent.group.forms.crossing import crossed
from device_agent.group.forms.reordered import attend_reordered
from device_agent.group.holding.held import HeldLayer, PieceCaches
from device_agent.group.rows.layout import overlap, parted
from device_agent.group.rows.step_rows import StepRows
from device_agent.planning.plan import ByRows, Sharded


def run_by_rows(
    held: HeldLayer,
    caches: PieceCaches,
    on: StepRows,
    own: torch.Tensor,
    coming: ComingRows | None,
    ahead: HeldLayer | None,
) -> tuple[torch.Tensor, ComingRows | None]:
    """own ``[own rows, hidden]`` to the layer's output for them, as far as they are wanted.

    Args:
        coming: what the members share for this layer, where the layer before has given its rows already.
        ahead: the next layer, where rows go on to it as they lie; it is given them as they are made.

    Returns the output, and what has begun to come for the next layer. Raises ``PeerLost``, ``EpochOver``.
    """
    layer, block = held.layer, held.block
    assert isinstance(layer, ByRows)
    mine = parted(on.rows, layer.rows).ranges[on.place]
    needed = overlap(mine, on.wanted)
    cut = slice(needed.start - mine.start, needed.stop - mine.start)
    if coming is None:
        coming = ComingRows(held, on, own)
        coming.give_all(own)
    queries = [each.qkv.query(coming.normed[cut], *on.turned(needed)) for each in held.blocks]
    seen = range(mine.stop) if layer.prefix else range(on.rows)
    if layer.reorders(on.place) and not caches[held.own]:
        tiles = coming if layer.overlap else coming.together(seen)
        contexts = attend_reordered(held.blocks, on, queries, needed, coming.shared, tiles)
    else:
        made = _keys_values(held, on, coming, seen)
        contexts = [
            on.look(each, on.store(of_piece, k, v), q, needed, bias)
            for each, of_piece, (k, v), q, bias in zip(held.blocks, caches, made, queries, held.biases, strict=True)
        ]
    partial = [each.attention_output(context) for each, context in zip(held.blocks, contexts, strict=True)]
    hidden = block.after_attention(own[cut], _sum(partial))
    if block.cross is not None:
        pieces = range(len(held.blocks))
        hidden = hidden.add_(_sum([crossed(held, on, piece, hidden, needed) for piece in pieces]))
    normed = block.mlp_norm(hidden)
    if ahead is None:
        return block.after_mlp(hidden, _sum([each.mlp(normed) for each in held.blocks])), None
    following, outputs = ComingRows(ahead, on, own), torch.empty_like(hidden)
    for rows in following.own:
        at = slice(rows.start - mine.start, rows.stop - mine.start)
        outputs[at] = block.after_mlp(hidden[at], _sum([each.mlp(normed[at]) for each in held.blocks]))
        following.give(rows, outputs[at])
    return outputs, following


def catch_up(held: HeldLayer, caches: PieceCaches, on: StepRows, common: int) -> None:
    """Give every member the keys and values that steps of few rows have stored at some: those of the step's one session
    from position ``common`` on, before the step's own, if there are any. Raises ``PeerLost``, ``EpochOver``."""
    layer = held.layer
    assert isinstance(layer, ByRows)
    groups = held.pieces[-1].groups.stop
    missing = on.start - common
    if missing <= 0:
        return
    if isinstance(layer.step, Sharded):
        shares, having = list(layer.step.groups), held.pieces[held.own].groups
    else:
        shares = [groups * (place == layer.step.member) for place in range(len(on.ranks))]
        having = range(shares[on.place])
    [own] = caches[held.own]
    keys, values = own.read(0)
    whole = keys.new_empty((groups, 2, missing, keys.shape[2]))
    if having:
        whole[having.start : having.stop, 0] = keys[:, common:]
        whole[having.start : having.stop, 1] = values[:, common:]
    on.collectives.all_gather(whole, shares, label=held.label).wait()
    for piece, [cache] in zip(held.pieces, caches, strict=True):
        if cache.length < on.start:
            k, v = whole[piece.groups.start : piece.groups.stop].transpose(0, 2).unbind(1)
            cache.append(0, k, v)
            cache.advance(missing)


def _keys_values(
    held: HeldLayer, on: StepRows, coming: ComingRows, seen: range
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of each piece the keys and values ``[seen, kv_heads, head_dim]``."""
    layer, shared = held.layer, coming.shared
    assert isinstance(layer, ByRows)
    if layer.keys_values:
        coming.together(seen)
        parts = [shared[: seen.stop, :, each.groups.start : each.groups.stop] for each in held.pieces]
        return [(part[:, 0], part[:, 1]) for part in parts]
    made = [
        (
            on.empty(each.kv_heads, each.head_dim, like=shared)[: seen.stop],
            on.empty(each.kv_heads, each.head_dim, like=shared)[: seen.stop],
        )
        for each in held.blocks
    ]

    def project(rows: range) -> None:
        for each, both in zip(held.blocks, made, strict=True):
            for into, part in zip(
                both, each.qkv.key_value(shared[rows.start : rows.stop], *on.turned(rows)), strict=True
            ):
                into[rows.start : rows.stop] = part

    for rows in coming if layer.overlap else coming.together(seen):
        project(rows)
    return made


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.Tensor.add_, parts)
