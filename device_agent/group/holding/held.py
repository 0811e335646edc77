"""The layers that a member holds, each as pieces in memory, and the keys and values of one session in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from device_agent.group.holding.halves import readers_of
from device_agent.group.holding.pieces import LayerPiece, pieces_of
from device_agent.group.holding.sights import PieceBias
from device_agent.planning.plan import ByRows, Layer
from device_agent.planning.thresholds import GROWTH, counted
from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.host_memory import give_back
from split_model.kv_cache import KVCache
from split_model.offload.loader import Loader

PieceCaches = list[list[KVCache]]
"""Of each piece of a layer, the caches of the sessions whose rows are in a step; none of a step that keeps nothing."""

Stored = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values ``[kv_heads, positions, head_dim]`` each."""


@dataclass(frozen=True)
class LentHeads:
    """Heads whose attention a member computes for another, which has all of their weights.

    Attributes:
        heads, kv_heads, head_dim, window: see ``Block``.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None


@dataclass(frozen=True)
class HeldLayer:
    """One layer, or what a member has of it.

    Attributes:
        layer: how the plan has it computed.
        pieces: what each of ``blocks`` is.
        blocks: in the order of groups and columns; none where the member has no part in the layer.
        label: under which the bytes of its exchanges are counted.
        biases: of each of ``pieces``, None where positions are not relative.
        heads: those of the first piece, where it has no weights and no block.
    """

    layer: Layer
    pieces: tuple[LayerPiece, ...]
    blocks: tuple[Block, ...]
    label: str
    biases: tuple[PieceBias | None, ...]
    heads: LentHeads | None = None

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        layer: Layer,
        number: int,
        place: int,
        dtype: torch.dtype,
        loader: Loader | None = None,
        device: torch.device | str = "cpu",
    ) -> HeldLayer:
        """Read layer ``number`` of the model, an encoder's before its decoder's, as far as the member at ``place`` has
        it, to ``device``, and but for what ``loader`` reads when it is used. Raises ``BadCheckpoint``."""
        readers = readers_of(checkpoint.spec)
        half, own = (checkpoint.reader(), number) if number < readers else (checkpoint, number - readers)
        pieces = pieces_of(layer, place, checkpoint.spec)
        apart = isinstance(layer, ByRows)
        plain = isinstance(layer, ByRows) and layer.reorders(place)
        how: dict[str, Any] = {"apart": apart, "plain": plain, "loader": loader}
        blocks = [Block(half, own, dtype, each.groups, each.columns, device, **how) for each in pieces if each.weights]
        spec, attends = half.spec, next((len(each.groups) for each in pieces if not each.weights), None)
        sizes = (attends * spec.heads_per_group, attends, spec.head_dim, spec.windows[own]) if attends else None
        give_back()  # Matrices were read before they were packed, and holes of other sizes are left.
        biases = tuple(PieceBias.load(half, each.groups, dtype, device) for each in pieces)
        return cls(layer, tuple(pieces), tuple(blocks), f"layer {number}", biases, sizes and LentHeads(*sizes))

    @property
    def own(self) -> int:
        """Which piece is the member's part of a step of few rows."""
        return next(number for number, piece in enumerate(self.pieces) if piece.own)

    @property
    def block(self) -> Block:
        """That piece's; norms are the same in all."""
        return self.blocks[self.own]

    @property
    def bias(self) -> PieceBias | None:
        """That piece's."""
        return self.biases[self.own]

    @property
    def kv_heads(self) -> list[int]:
        """Of each of ``pieces``, for how many heads keys and values are made."""
        computed = iter(self.blocks)
        found = [next(computed) if piece.weights else self.heads for piece in self.pieces]
        return [each.kv_heads for each in found if each is not None]

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return sum(block.loaded_bytes for block in self.blocks)


class SessionCaches:
    """Keys and values of one session at one member: a cache for each piece of each layer.

    Where all members have whole layers and only some computed the last steps, the others' caches are shorter:
    ``common`` is how long they are at least, the same number in all members, so that nobody has to ask.

    Attributes:
        positions: most that the session may reach.
        position: where it is.
        common: of each layer that is computed by rows: positions whose keys and values every member has.
        number: the session's.
        away: of each layer, how many of its oldest rows lie at another member; its cache begins behind them.
        sources: of each piece of each layer, keys and values of the text that the session is about; none in most
            models.
        layers: as this session computes them, with fewer heads than others where that was asked for.
        narrow: whether it does so.
    """

    def __init__(
        self,
        layers: Sequence[HeldLayer],
        positions: int,
        head_dim: int,
        dtype: torch.dtype,
        number: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self._kind, self._device = (head_dim, dtype), device
        self._of = [self._new(layer, positions) for layer in layers]
        self.layers, self.narrow = list(layers), False
        self.positions = positions
        self.position = 0
        self.number = number
        self.common, self.away = [0] * len(layers), [0] * len(layers)
        self.sources: list[Stored] = []

    def of(self, layer: int) -> list[KVCache]:
        """Of each piece of a layer, numbered from 0 in the group."""
        return self._of[layer]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        read = sum(each.nbytes for stored in self.sources for pair in stored for each in pair)
        return read + sum(cache.nbytes for caches in self._of for cache in caches)

    @property
    def counted(self) -> int:
        """See ``thresholds.counted``."""
        return counted(self.position, self.positions)

    def counted_with(self, rows: int) -> int:
        """The same once it has so many rows more."""
        return counted(self.position + rows, self.positions)

    def reserve(self, rows: int) -> None:
        """Make room for so many rows more, and little beyond, so that it never has more than it is counted as."""
        for cache in (cache for caches in self._of for cache in caches):
            cache.reserve(rows, spare=GROWTH)

    def shrink(self) -> None:
        """Let go of what it has beyond that, behind a ``truncate``."""
        to = min(self.position + GROWTH, self.positions) if self.position else 0
        for caches, away in zip(self._of, self.away, strict=True):
            for cache in caches:
                cache.shrink(self.counted - away, max(to - away, 0))

    def keep(self, number: int, held: HeldLayer) -> None:
        """From its first row on it computes layer ``number`` of the group's like that."""
        assert not self.position
        self.layers[number], self._of[number], self.narrow = held, self._new(held, self.positions), True

    def _new(self, layer: HeldLayer, positions: int) -> list[KVCache]:
        return [KVCache(1, kv_heads, *self._kind, positions, self._device) for kv_heads in layer.kv_heads]

    def attend_to(self, layers: Sequence[HeldLayer], read: torch.Tensor) -> None:
        """The session is about a text: an encoder's rows of it, ``[rows, hidden]``, become keys and values."""
        self.sources = [[_keys_values(block, read) for block in held.blocks] for held in layers]

    def truncate(self, position: int) -> None:
        """Forget the rows from ``position`` on. Raises ``ValueError`` beyond those that are there."""
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot truncate to {position}: the session is at {self.position}")
        self.position = position
        self.common = [min(each, position) for each in self.common]
        for caches, away in zip(self._of, self.away, strict=True):
            for cache in caches:
                cache.truncate(min(cache.length, max(position - away, 0)))
        self.away = [min(each, position) for each in self.away]

    def oldest(self, layer: int, rows: int) -> torch.Tensor:
        """A copy of so many rows of a layer, from the first that is here on: ``[2, rows, kv_heads, head_dim]``."""
        [cache] = self._of[layer]
        return torch.stack([each.narrow(1, 0, rows).transpose(0, 1) for each in cache.read(0)])

    def send_away(self, layer: int, rows: int) -> None:
        """The first so many that are here lie at another member from now on."""
        [cache] = self._of[layer]
        cache.drop_oldest(rows)
        self.away[layer] += rows

    def take_back(self, layer: int, rows: torch.Tensor) -> None:
        """The last of those that are away, ``[2, rows, kv_heads, head_dim]``, are here again."""
        [cache] = self._of[layer]
        cache.put_before(*rows)
        self.away[layer] -= rows.shape[1]

    def given_up(self) -> list[list[KVCache]]:
        """All of it, of each layer and piece; the session has none any more."""
        found, self._of = self._of, []
        return found

    def begin_with(self, caches: list[list[KVCache]], position: int) -> None:
        """Go on at ``position`` with what another life of the group has left, which is that long or longer; of what the
        member need not have nothing is there."""
        assert [len(each) for each in caches] == [len(each) for each in self._of]
        self._of, self.position = caches, position
        for cache in (cache for each in caches for cache in each):
            cache.truncate(min(cache.length, position))

    def begin_as(self, other: SessionCaches, position: int) -> None:
        """Hold a copy of the first ``position`` rows of another, of which none are away. Raises ``ValueError`` where it
        has fewer."""
        assert not any(other.away)
        if not 0 <= position <= other.position:
            raise ValueError(f"cannot begin with {position} rows of a session that is at {other.position}")
        for mine, others in zip(self._of, other._of, strict=True):
            for cache, source in zip(mine, others, strict=True):
                cache.begin_as(source, min(source.length, position))
        self.position = position
        self.common = [min(each, position) for each in other.common]
        self.sources = other.sources  # Nobody writes to them.
        self.layers, self.narrow = other.layers, other.narrow


def caches_of(sessions: Sequence[SessionCaches], layer: int, pieces: int) -> PieceCaches:
    """Of a layer that the member has in so many pieces, for a step with rows of these sessions."""
    return [[session.of(layer)[piece] for session in sessions] for piece in range(pieces)]


def sources_of(sessions: Sequence[SessionCaches], layer: int, pieces: int) -> list[Stored]:
    """Of each piece of a layer what these sessions are about; none where they are about nothing."""
    return [[session.sources[layer][piece] for session in sessions if session.sources] for piece in range(pieces)]


def _keys_values(block: Block, read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    assert block.cross is not None
    with block.using("attention"):
        keys, values = block.cross.projection.key_value(read)
    return keys.transpose(0, 1), values.transpose(0, 1)
