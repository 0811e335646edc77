"""What the members share for a layer by rows: each gives its own rows as it makes them, and others' come meanwhile.

It may begin while the layer before is still computed: the first of a member's rows are then on their way to the others
while its last ones are in the MLP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch

from device_agent.group.holding.held import HeldLayer
from device_agent.group.rows.layout import parted
from device_agent.group.rows.sending import Tag
from device_agent.group.rows.step_rows import StepRows
from device_agent.planning.plan import ByRows
from peers.exchange import Exchange
from peers.gathering import OwnTiles


class ComingRows:
    """For one layer of one step.

    Attributes:
        own: which of the step's rows this member computes, as ranges in the order in which they are to be given.
        normed: these, behind the layer's first norm, as far as they are given, ``[own rows, hidden]``.
        shared: of all rows what the members share, as far as it is there: the normed rows ``[rows, hidden]``, or keys
            and values ``[rows, 2, kv_heads, head_dim]``.
    """

    def __init__(self, held: HeldLayer, on: StepRows, like: torch.Tensor) -> None:
        """Begin: the others' may come. Raises ``PeerLost``, ``EpochOver``."""
        layer = held.layer
        assert isinstance(layer, ByRows)
        self._held, self._on, self._keys_values = held, on, layer.keys_values
        layout = parted(on.rows, layer.rows)
        self._mine = layout.ranges[on.place]
        if layer.keys_values:
            self.shared = on.empty(2, held.pieces[-1].groups.stop, held.block.head_dim, like=like)
            self.normed = like.new_empty((len(self._mine), like.shape[1]))
        else:
            self.shared = on.empty(like.shape[1], like=like)
            self.normed = self.shared[self._mine.start : self._mine.stop]
        self._gathering: OwnTiles | None = None
        self._prefix = layer.prefix
        self._layout = layout
        self._exchanges: list[tuple[range, Exchange]] = []
        self.own = [self._mine]
        if not layer.prefix:
            self._gathering = on.collectives.all_gather_given(
                self.shared, layout.counts, pieces=layer.pieces, label=held.label
            )
            self.own = [range(tile.begin, tile.end) for tile in self._gathering.tiles]

    def give(self, rows: range, hidden: torch.Tensor) -> None:
        """The next of the own rows, ``[len(rows), hidden]`` as they come to the layer."""
        normed = self._held.block.input_norm(hidden)
        self.normed[rows.start - self._mine.start : rows.stop - self._mine.start] = normed
        if self._keys_values:
            for piece, block in zip(self._held.pieces, self._held.blocks, strict=True):
                for number, part in enumerate(block.qkv.key_value(normed, *self._on.turned(rows))):
                    self.shared[rows.start : rows.stop, number, piece.groups.start : piece.groups.stop] = part
        if self._gathering is not None:
            self._gathering.give()
        else:
            self._send_prefix()

    def give_all(self, own: torch.Tensor) -> None:
        """All of them, ``[own rows, hidden]``."""
        for rows in self.own:
            self.give(rows, own[rows.start - self._mine.start : rows.stop - self._mine.start])

    def __iter__(self) -> Iterator[range]:
        """Rows as they come, as many at once as are there: own rows are at once."""
        if self._gathering is not None:
            yield from self._gathering.exchange.runs()
            return
        if self._mine:
            yield self._mine
        coming = deque(self._exchanges)
        while coming:
            rows, exchange = coming.popleft()
            exchange.wait()
            while coming and coming[0][1].done and coming[0][0].start == rows.stop:
                following, exchange = coming.popleft()
                exchange.wait()
                rows = range(rows.start, following.stop)
            yield rows

    def together(self, seen: range) -> list[range]:
        """The first rows as one tile, once all have come."""
        for _ in self:
            pass
        return [seen]

    def _send_prefix(self) -> None:
        """Own rows to those behind, who alone see them. The last member gets all: it goes on with them."""
        on, last = self._on, len(self._on.ranks) - 1
        for place, rows in enumerate(self._layout.ranges):
            if place < on.place and rows and (self._mine or on.place == last):
                part = self.shared[rows.start : rows.stop]
                coming = on.collectives.receive(part, on.ranks[place], Tag.PREFIX, label=self._held.label)
                self._exchanges.append((rows, coming))
            elif place > on.place and self._mine and (rows or place == last):
                part = self.shared[self._mine.start : self._mine.stop]
                on.collectives.send(part, on.ranks[place], Tag.PREFIX, label=self._held.label)
