"""A layer that one member, its *home*, has and lends parts of: heads, and columns of the MLP (EdgeFormer's cMHA).

Lent are the heads' attention alone (Eq. 18 to 22): the home projects queries, keys and values of lent heads before its
own, sends them, computes its own heads meanwhile, and multiplies what comes back by its own output projection. Or the
projections too: then lenders get the rows behind the first norm and give back partial sums. Lent columns get the rows
behind the second norm. All goes between the home and each lender alone, and what comes back is added in the order of
members, so the bits do not depend on who is first.

Keys and values lie where the attention is computed. Where steps of few rows are computed at home alone, the home keeps
those of lent heads too; what such steps store lenders lack, and ``catch_up_lenders`` brings it there before heads are
lent again. When another plan calls heads home they are handed over, as with every form of a layer, see
``steps.handing``.

Sizes are those of the layer's blocks, so who leaves heads out of a step gives it a layer whose blocks have fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch

from device_agent.group.holding.held import HeldLayer, PieceCaches
from device_agent.group.holding.pieces import members_at_home
from device_agent.group.rows.sending import Tag
from device_agent.group.rows.step_rows import StepRows
from device_agent.planning.plan import Lent


def run_lent(
    held: HeldLayer, caches: PieceCaches, on: StepRows, hidden: torch.Tensor, lends: bool = True
) -> torch.Tensor:
    """hidden ``[rows, hidden]`` at home to the layer's output for the rows that are wanted; other members have none,
    and get back what they gave. Raises ``PeerLost``, ``EpochOver``.

    lends: else the home asks nobody: it has the weights, and the keys and values, of all heads.
    """
    layer = _layer(held)
    if on.place == layer.home:
        return (_at_home if lends else _alone_at_home)(held, caches, on, hidden)
    if held.pieces and lends:
        _at_lender(held, layer, caches, on, hidden)
    return hidden


def catch_up_lenders(
    held: HeldLayer, caches: PieceCaches, on: StepRows, common: Sequence[list[int]], number: int
) -> None:
    """Give lenders the keys and values of their heads that steps at home have stored, before a step of layer ``number``
    in which they attend, if there are any: those of the step's one session from the position ``common`` on, of which
    there is none where nothing is kept. Raises ``PeerLost``, ``EpochOver``."""
    if _layer(held).copies and common:
        [of_layers] = common
        _catch_up(held, caches, on, on.start - of_layers[number])
        of_layers[number] = on.start + on.rows


def _catch_up(held: HeldLayer, caches: PieceCaches, on: StepRows, missing: int) -> None:
    layer = _layer(held)
    if missing <= 0:
        return
    if on.place == layer.home:
        for member, [cache] in zip(members_at_home(layer), caches, strict=True):
            if member != layer.home and layer.groups[member]:
                both = torch.stack([each[:, on.start - missing :] for each in cache.read(0)])
                on.collectives.send(both, on.ranks[member], Tag.LEND, label=held.label)
    elif held.heads is not None:
        [cache] = caches[0]
        both = cache.read(0)[0].new_empty((2, held.heads.kv_heads, missing, held.heads.head_dim))
        on.collectives.receive(both, on.ranks[layer.home], Tag.LEND, label=held.label).wait()
        cache.append(0, *both.transpose(1, 2))
        cache.advance(missing)


def _alone_at_home(held: HeldLayer, caches: PieceCaches, on: StepRows, hidden: torch.Tensor) -> torch.Tensor:
    block, rows = held.block, slice(on.wanted.start, on.wanted.stop)
    normed = block.input_norm(hidden)
    hidden = block.after_attention(
        hidden[rows], _sum([_own(held, at, caches, on, normed) for at in range(len(held.blocks))])
    )
    normed = block.mlp_norm(hidden)
    return block.after_mlp(hidden, _sum([each.mlp(normed) for each in held.blocks]))


def _at_home(held: HeldLayer, caches: PieceCaches, on: StepRows, hidden: torch.Tensor) -> torch.Tensor:
    layer, block, rows = _layer(held), held.block, slice(on.wanted.start, on.wanted.stop)
    attend = _with_projections_lent if layer.projections else _with_attention_lent
    partial = attend(held, layer, caches, on, block.input_norm(hidden))
    hidden = block.after_attention(hidden[rows], partial)
    normed = block.mlp_norm(hidden)
    lent = [_Asked(on, member, normed, normed.shape, held.label) for member in _lenders(layer.columns, layer)]
    partial = block.mlp(normed)
    for each in lent:
        partial += each.back()
    return block.after_mlp(hidden, partial)


def _with_projections_lent(
    held: HeldLayer, layer: Lent, caches: PieceCaches, on: StepRows, normed: torch.Tensor
) -> torch.Tensor:
    shape = len(on.wanted), normed.shape[1]
    lent = [_Asked(on, member, normed, shape, held.label) for member in _lenders(layer.groups, layer)]
    partial = _own(held, held.own, caches, on, normed)
    for each in lent:
        partial += each.back()
    return partial


def _with_attention_lent(
    held: HeldLayer, layer: Lent, caches: PieceCaches, on: StepRows, normed: torch.Tensor
) -> torch.Tensor:
    lent = []
    for at, member in enumerate(members_at_home(layer)):
        if member == layer.home or not layer.groups[member]:
            continue
        block = held.blocks[at]
        q, k, v = block.qkv(normed, *on.turned(range(on.rows)))
        shape = len(on.wanted), block.heads * block.head_dim
        lent.append((block, _Asked(on, member, torch.cat((q, k, v), 1), shape, held.label)))
        if layer.few_rows:
            on.store(caches[at], k, v)
    partial = _own(held, held.own, caches, on, normed)
    for block, each in lent:
        partial += block.attention_output(each.back())
    return partial


def _at_lender(held: HeldLayer, layer: Lent, caches: PieceCaches, on: StepRows, like: torch.Tensor) -> None:
    home, wanted = on.ranks[layer.home], len(on.wanted)

    def received(*shape: int) -> torch.Tensor:
        came = like.new_empty(shape)
        on.collectives.receive(came, home, Tag.LEND, label=held.label).wait()
        return came

    def give(part: torch.Tensor) -> None:
        if wanted:
            on.collectives.send(part, home, Tag.BACK, label=held.label)

    if (heads := held.heads) is not None:
        sizes = heads.heads, heads.kv_heads, heads.kv_heads
        q, k, v = received(on.rows, sum(sizes), heads.head_dim).split_with_sizes(sizes, 1)
        stored = on.store(caches[0], k, v)
        give(on.look(heads, stored, q[on.wanted.start :], on.wanted, held.biases[0]))
    elif layer.groups[on.place]:
        give(_own(held, held.own, caches, on, received(on.rows, like.shape[1])))
    if layer.columns[on.place] and wanted:
        give(held.blocks[-1].mlp(received(wanted, like.shape[1])))


class _Asked:
    """What one lender has been given to compute with, until it is back."""

    def __init__(self, on: StepRows, member: int, given: torch.Tensor, back: tuple[int, ...], label: str) -> None:
        """back: the shape of what comes back; nothing does where there are no rows."""
        self._back = given.new_empty(back)
        self._coming = None
        if len(given):
            on.collectives.send(given, on.ranks[member], Tag.LEND, label=label)
        if len(self._back):
            self._coming = on.collectives.receive(self._back, on.ranks[member], Tag.BACK, label=label)

    def back(self) -> torch.Tensor:
        """Raises ``PeerLost``, ``EpochOver``."""
        if self._coming is not None:
            self._coming.wait()
        return self._back


def _own(held: HeldLayer, at: int, caches: PieceCaches, on: StepRows, normed: torch.Tensor) -> torch.Tensor:
    """Of all rows ``[rows, hidden]`` one piece's partial sum of the attention, of those that are wanted."""
    block = held.blocks[at]
    q, k, v = block.qkv(normed, *on.turned(range(on.rows)))
    stored = on.store(caches[at], k, v)
    context = on.look(block, stored, q[on.wanted.start : on.wanted.stop], on.wanted, held.biases[at])
    return block.attention_output(context)


def _lenders(parts: Sequence[int], layer: Lent) -> list[int]:
    """The members beside the home that have some of the groups, or of the columns."""
    return [member for member, count in enumerate(parts) if count and member != layer.home]


def _layer(held: HeldLayer) -> Lent:
    assert isinstance(held.layer, Lent)
    return held.layer


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.Tensor.add_, parts)
