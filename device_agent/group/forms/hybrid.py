"""A layer as Galaxy+ has it: heads and columns are shared, and between them norms and residuals by rows.

Rows are gathered for a product and its sums scattered behind it, tile by tile: while one tile travels another is
multiplied, on both sides. Under Scheme-2 the MLP is computed by rows too, and nothing travels for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce

import torch

from device_agent.group.forms.crossing import cross_context
from device_agent.group.holding.held import HeldLayer, PieceCaches
from device_agent.group.rows.layout import Parted, parted
from device_agent.group.rows.step_rows import StepRows
from device_agent.planning.plan import Hybrid


def run_hybrid(held: HeldLayer, caches: PieceCaches, on: StepRows, own: torch.Tensor) -> torch.Tensor:
    """own ``[own rows, hidden]`` to the layer's output for them; the keys and values of the member's own heads are
    stored, where any are kept. Raises ``PeerLost``, ``EpochOver``."""
    layer, block = held.layer, held.block
    assert isinstance(layer, Hybrid)
    exchange = _RowsAndSums(parted(on.rows, layer.rows), on, layer.overlap, held.label)
    q = on.empty(block.heads, block.head_dim, like=own)
    k, v = (on.empty(block.kv_heads, block.head_dim, like=own) for _ in range(2))
    with block.using("attention"):
        for at, normed in exchange.gathered(block.input_norm(own)):
            q[at], k[at], v[at] = block.qkv(normed, *on.turned(range(on.rows)[at]))
        context = on.attend(block, caches[held.own], q, k, v, held.bias)
        own = block.after_attention(own, exchange.summed(lambda at: block.attention_output(context[at]), own))
    if (cross := block.cross) is not None:
        for at, normed in exchange.gathered(cross.norm(own)):
            q[at] = cross.projection.query(normed)
        found = cross_context(on, held.own, q, range(on.rows))
        own = own.add_(exchange.summed(lambda at: cross.output(found[at]), own))
    normed = block.mlp_norm(own)
    if layer.mlp_by_rows:
        return block.after_mlp(own, reduce(torch.Tensor.add_, [each.mlp(normed) for each in held.blocks]))
    inner = on.empty(block.columns, like=own)
    with block.using("mlp"):
        for at, part in exchange.gathered(normed):
            inner[at] = block.mlp_inner(part)
        return block.after_mlp(own, exchange.summed(lambda at: block.mlp_output(inner[at]), own))


class _RowsAndSums:
    """The two exchanges of a block.

    Args:
        overlap: whether a tile is multiplied before the next has come, and leaves before the next is multiplied.
    """

    def __init__(self, layout: Parted, on: StepRows, overlap: bool, label: str) -> None:
        self._layout, self._on = layout, on
        self._mine = _slice(layout.ranges[on.place])
        self._overlap = overlap
        self._label = label

    def gathered(self, own: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """All members' rows as they come: where they are, and they themselves."""
        whole = self._on.empty(own.shape[1], like=own)
        whole[self._mine] = own
        coming = self._on.collectives.all_gather(whole, self._layout.counts, label=self._label)
        if not self._overlap:
            coming.wait()
            yield slice(0, self._on.rows), whole
            return
        for rows in coming.runs():
            yield _slice(rows), whole[rows.start : rows.stop]

    def summed(self, product: Callable[[slice], torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """Of the sum of all members' products this member's rows."""
        parts = self._on.empty(like.shape[1], like=like)
        if not self._overlap:
            parts[:] = product(slice(0, self._on.rows))
        going = self._on.collectives.reduce_scatter(parts, self._layout.counts, given=False, label=self._label)
        for place in going.order:
            rows = self._layout.ranges[place]
            if rows and self._overlap:
                parts[_slice(rows)] = product(_slice(rows))
            going.give(place)
        going.exchange.wait()
        return parts[self._mine]


def _slice(rows: range) -> slice:
    return slice(rows.start, rows.stop)
