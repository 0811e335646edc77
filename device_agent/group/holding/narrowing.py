"""A member's layers without some heads: narrower copies of what it holds, kept by set, within bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

import torch

from device_agent.group.holding.held import HeldLayer, SessionCaches
from device_agent.group.holding.pieces import members_at_home
from device_agent.group.messages.heads import BadGroupHead, KeepHead
from device_agent.group.messages.keeping import kept_by
from device_agent.planning.plan import ByRows, GroupPlan, Lent, Whole
from device_agent.planning.shares import spans
from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.pruning.block import PrunedBlock
from split_model.pruning.kept import KeptHeads
from split_model.spec import ModelSpec

COPIES: float = 1 / 3
"""Of what a member's layers take, copies may that are kept: about what attention has of it. Those that sessions use are
there beside these, each once: how many that may be, the portal sees to."""


def can_narrow(plan: GroupPlan, spec: ModelSpec) -> bool:
    """Whether a session may leave heads out of a plan's layers: not where rows are shared, for which queries are a
    matrix of their own, nor where layers attend to another text or are read from disks at each use."""
    kept = not plan.streams and not plan.cache_bytes
    return kept and spec.attention == "causal" and not any(isinstance(layer, ByRows) for layer in plan.layers)


_Copy = tuple[int, int, KeptHeads, KeptHeads | None]
"""What a copy is of: a layer, its first head of that, which are kept of those, and which are computed instead."""


class Narrowing:
    """Of one member in one plan. For one thread at a time.

    Args:
        first: of the model, the group's first layer.
        layers: the group's, as the member has them.
        place: the member's.
        spare_bytes: what it has beside its part of the plan.
    """

    def __init__(
        self, checkpoint: Checkpoint, first: int, layers: Sequence[HeldLayer], place: int, spare_bytes: int
    ) -> None:
        self.spec = checkpoint.spec
        self._checkpoint, self._first, self._layers, self._place = checkpoint, first, layers, place
        self._most_bytes = min(COPIES * sum(each.loaded_bytes for each in layers), spare_bytes)
        self._made: OrderedDict[tuple[int, KeptHeads, tuple[int, ...]], HeldLayer] = OrderedDict()
        self._there: WeakValueDictionary[_Copy, PrunedBlock] = WeakValueDictionary()
        self._means: torch.Tensor | None = None

    def take_means(self, means: torch.Tensor) -> None:
        """What is added for heads that are left out, float32 ``[layers, heads, head_dim]``."""
        self._means = means
        self._made.clear()
        self._there.clear()

    def narrowed(self, number: int, kept: KeptHeads, counts: tuple[int, ...] = ()) -> HeldLayer:
        """A layer of the group with the heads that are kept of it, which the members compute by so many KV groups each;
        (): those compute them who have them. Raises ``BadGroupHead``, ``CannotPrune``, ``BadCheckpoint``."""
        if kept.is_all:
            return self._layers[number]
        # Forms are those of the plan: however its layers are run, weights are held alike.
        key = number, kept, counts
        if key not in self._made:
            self._made[key] = self._made_of(*key)
        self._made.move_to_end(key)
        found = self._made[key]
        while len(self._made) > 1 and sum(map(_own_bytes, self._made.values())) > self._most_bytes:
            self._made.popitem(last=False)
        return found

    def _made_of(self, number: int, kept: KeptHeads, counts: tuple[int, ...]) -> HeldLayer:
        held = self._layers[number]
        _check(held, counts)
        weights = [piece for piece in held.pieces if piece.weights]
        # Of lent attention the home has a piece for each who computes some of it.
        layer, members = held.layer, [self._place] * len(weights)
        if isinstance(layer, Lent) and not layer.projections and layer.home == self._place:
            members = members_at_home(layer)
        blocks = tuple(
            self._without(number, block, piece.groups, kept, _at(kept, counts, member))
            for block, piece, member in zip(held.blocks, weights, members, strict=True)
        )
        heads = held.heads
        if heads is not None:
            inside = _at(kept, counts, self._place) or _inside(kept, held.pieces[0].groups)
            heads = replace(heads, heads=len(inside.groups) * inside.widest, kv_heads=len(inside.groups))
        return replace(held, blocks=blocks, heads=heads)

    def _without(self, number: int, block: Block, groups: range, kept: KeptHeads, instead: KeptHeads | None) -> Block:
        """instead: the heads of the model that are computed with this piece; None: its own that are kept."""
        inside, first = _inside(kept, groups), groups.start * kept.group
        if instead is not None and instead.heads == tuple(head + first for head in inside.heads):
            instead = None
        if not groups or (inside.is_all and instead is None):
            return block
        layer, means = self._first + number, self._means
        if means is not None:
            means = means[number, first : first + inside.total]
        key = number, first, inside, instead
        found = self._there.get(key)
        if found is None:
            found = self._there[key] = PrunedBlock(block, self._checkpoint, layer, inside, first, means, instead)
        return found


def _check(held: HeldLayer, counts: tuple[int, ...]) -> None:
    """Raises ``BadGroupHead`` where a member is to compute more than is planned for it."""
    layer = held.layer
    planned = () if isinstance(layer, (Whole, ByRows)) else layer.groups
    if counts and (len(counts) != len(planned) or any(map(int.__gt__, counts, planned))):
        raise BadGroupHead(f"{held.label}: {list(counts)} groups are not what members have room for")


def _at(kept: KeptHeads, counts: tuple[int, ...], member: int) -> KeptHeads | None:
    """The heads of the model that a member computes, by its number of KV groups; None where none is said."""
    if not counts:
        return None
    mine = {kept.groups[at] for at in spans(counts)[member]}
    return replace(kept, heads=tuple(head for head in kept.heads if head // kept.group in mine))


def narrow(narrowing: Narrowing | None, session: SessionCaches, head: KeepHead, layers: Sequence[HeldLayer]) -> None:
    """A session that has no rows yet computes only the heads that are said of these layers, which are the group's as
    they are run. Raises ``BadGroupHead``, ``CannotPrune``, ``BadCheckpoint``."""
    if narrowing is None or session.position:
        raise BadGroupHead(f"session {head.session} cannot leave heads out")
    for number, kept, counts in kept_by(head, narrowing.spec, len(layers)):
        session.keep(number, replace(narrowing.narrowed(number, kept, counts), layer=layers[number].layer))


def _inside(kept: KeptHeads, groups: range) -> KeptHeads:
    """Of some groups the heads that are kept, numbered from their first."""
    first, last = groups.start * kept.group, groups.stop * kept.group
    return KeptHeads(tuple(head - first for head in kept.heads if first <= head < last), last - first, kept.group)


def _own_bytes(held: HeldLayer) -> int:
    return sum(block.own_bytes for block in held.blocks if isinstance(block, PrunedBlock))
