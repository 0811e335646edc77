"""A member's layers without some heads: narrower copies of what it holds, kept by set, within bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from device_agent.group.holding.held import HeldLayer, SessionCaches
from device_agent.group.messages.heads import BadGroupHead, KeepHead
from device_agent.group.messages.keeping import kept_by
from device_agent.planning.plan import ByRows, GroupPlan
from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.pruning.block import PrunedBlock
from split_model.pruning.kept import KeptHeads
from split_model.spec import ModelSpec

COPIES: float = 1 / 3
"""Of what a member's layers take, copies may: about what attention has of it. One in use stays, however many are."""


def can_narrow(plan: GroupPlan, spec: ModelSpec) -> bool:
    """Whether a session may leave heads out of a plan's layers: not where rows are shared, for which queries are a
    matrix of their own, nor where layers attend to another text or are read from disks at each use."""
    kept = not plan.streams and not plan.cache_bytes
    return kept and spec.attention == "causal" and not any(isinstance(layer, ByRows) for layer in plan.layers)


class Narrowing:
    """Of one member in one plan. For one thread at a time.

    Args:
        first: of the model, the group's first layer.
        layers: the group's, as the member has them.
    """

    def __init__(self, checkpoint: Checkpoint, first: int, layers: Sequence[HeldLayer]) -> None:
        self.spec = checkpoint.spec
        self._checkpoint, self._first, self._layers = checkpoint, first, layers
        self._most_bytes = COPIES * sum(each.loaded_bytes for each in layers)
        self._made: OrderedDict[tuple[int, KeptHeads], HeldLayer] = OrderedDict()

    def narrowed(self, number: int, kept: KeptHeads) -> HeldLayer:
        if kept.is_all:
            return self._layers[number]
        # Forms are those of the plan: however its layers are run, weights are held alike.
        key = number, kept
        if key not in self._made:
            self._made[key] = self._made_of(number, kept)
        self._made.move_to_end(key)
        found = self._made[key]
        while len(self._made) > 1 and sum(map(_own_bytes, self._made.values())) > self._most_bytes:
            self._made.popitem(last=False)
        return found

    def _made_of(self, number: int, kept: KeptHeads) -> HeldLayer:
        held = self._layers[number]
        pieces = iter([piece for piece in held.pieces if piece.weights])
        blocks = tuple(self._without(self._first + number, block, next(pieces).groups, kept) for block in held.blocks)
        heads = held.heads
        if heads is not None:
            inside = _inside(kept, held.pieces[0].groups)
            heads = replace(heads, heads=len(inside.groups) * inside.widest, kv_heads=len(inside.groups))
        return replace(held, blocks=blocks, heads=heads)

    def _without(self, layer: int, block: Block, groups: range, kept: KeptHeads) -> Block:
        inside = _inside(kept, groups)
        if not groups or inside.is_all:
            return block
        return PrunedBlock(block, self._checkpoint, layer, inside, groups.start * kept.group)


def narrow(narrowing: Narrowing | None, session: SessionCaches, head: KeepHead, layers: Sequence[HeldLayer]) -> None:
    """A session that has no rows yet computes only the heads that are said of these layers, which are the group's as
    they are run. Raises ``BadGroupHead``, ``CannotPrune``, ``BadCheckpoint``."""
    if narrowing is None or session.position:
        raise BadGroupHead(f"session {head.session} cannot leave heads out")
    for number, kept in kept_by(head, narrowing.spec, len(layers)):
        session.keep(number, replace(narrowing.narrowed(number, kept), layer=layers[number].layer))


def _inside(kept: KeptHeads, groups: range) -> KeptHeads:
    """Of some groups the heads that are kept, numbered from their first."""
    first, last = groups.start * kept.group, groups.stop * kept.group
    return KeptHeads(tuple(head - first for head in kept.heads if first <= head < last), last - first, kept.group)


def _own_bytes(held: HeldLayer) -> int:
    return sum(block.own_bytes for block in held.blocks if isinstance(block, PrunedBlock))
