"""Stacks without some heads: copies of what is left, kept by set, within bounds."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakValueDictionary

import torch

from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.pruning.block import PrunedBlock
from split_model.pruning.kept import KeptHeads
from split_model.residence import Blocks
from split_model.stack import Stack


class NoRoomForSets(RuntimeError):
    """Stacks with so many other sets of heads are in use that there is no memory for one more; later there is."""


class PrunedStacks:
    """`stack` with fewer heads, for whoever asks with which.

    Layers are kept by what is left of them, those used last, up to `most_bytes` beside the whole stack. A stack that is
    in use holds its layers; all together take `most_in_use` bytes, or as many as one stack needs, where that is more.
    For one thread at a time; stacks may be let go of on any.
    """

    def __init__(
        self,
        stack: Stack,
        checkpoint: Checkpoint,
        most_bytes: int,
        means: torch.Tensor | None = None,
        most_in_use: int | None = None,
    ) -> None:
        """means: of all layers of the stack, [layers, heads, head_dim], see `PrunedBlock`; None: nothing stands for
        pruned heads. most_in_use: None: there is no bound."""
        self._stack, self._checkpoint, self._most_bytes, self._means = stack, checkpoint, most_bytes, means
        self._most_in_use = most_in_use
        self._layers: OrderedDict[tuple[int, KeptHeads], PrunedBlock] = OrderedDict()
        self._there: WeakValueDictionary[tuple[int, KeptHeads], PrunedBlock] = WeakValueDictionary()

    @property
    def own_bytes(self) -> int:
        """Bytes kept beside the whole stack's."""
        return sum(block.own_bytes for block in self._layers.values())

    @property
    def bytes_there(self) -> int:
        """The same with those that are in use and not kept."""
        return sum(block.own_bytes for block in list(self._there.values()))

    def with_heads(self, sets: Sequence[KeptHeads]) -> Stack:
        """The stack with `sets`, one for each of its layers; itself where nothing is pruned.

        Its caches have room for the keys and values of the kept heads alone. Raises as `PrunedBlock` does, ValueError
        for another number of sets, NoRoomForSets.
        """
        stack = self._stack
        if len(sets) != len(stack.blocks):
            raise ValueError(f"{len(sets)} sets of heads for {len(stack.blocks)} layers")
        if all(kept.is_all for kept in sets):
            return stack
        blocks = [
            block if kept.is_all else self._layer(number, kept)
            for number, (block, kept) in enumerate(zip(stack.blocks, sets, strict=True))
        ]
        self._forget()
        if not self._has_room(blocks):
            blocks.clear()  # Who keeps the error does not keep them.
            raise NoRoomForSets("stacks without other heads are in use, and take all memory that there is for such")
        found = copy.copy(stack)
        found.blocks, found.kept_kv_heads = Blocks(blocks), tuple(block.kv_heads for block in blocks)
        return found

    def _layer(self, number: int, kept: KeptHeads) -> PrunedBlock:
        key = number, kept
        block = self._there.get(key)
        if block is None:
            held = self._stack.slice
            group = 0 if held.kv_groups is None else held.kv_groups.start
            means = None if self._means is None else self._means[number]
            layer = held.first_layer + number
            whole = self._stack.blocks[number]
            block = PrunedBlock(whole, self._checkpoint, layer, kept, group * kept.group, means)
        self._layers[key] = self._there[key] = block
        self._layers.move_to_end(key)
        return block

    def _has_room(self, blocks: Sequence[Block]) -> bool:
        """Whether these may be there too. What is kept and not in use gives way first."""
        if self._most_in_use is None or self.bytes_there <= self._most_in_use:
            return True
        self._layers.clear()
        needed = sum(each.own_bytes for each in blocks if isinstance(each, PrunedBlock))
        return self.bytes_there <= max(self._most_in_use, needed)

    def _forget(self) -> None:
        over = self.own_bytes - self._most_bytes
        while over > 0 and self._layers:
            over -= self._layers.popitem(last=False)[1].own_bytes
