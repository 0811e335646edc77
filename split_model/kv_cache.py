"""The keys and values of one session on one stack of layers, contiguous, growing by doubling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from split_model.device import put

_FIRST_CAPACITY = 64


class CacheFull(Exception):
    """The rows do not fit under the cache's limit. Nothing has changed: shorten the prompt or raise the limit."""


class KVCache:
    """Room for `capacity_limit` positions in each of `num_layers` layers.

    A step appends its rows to every layer and then advances: only then do they count. A step that fails
    before it advances leaves the cache as it was.
    """

    def __init__(
        self,
        num_layers: int,
        kv_heads: int | Sequence[int],
        head_dim: int,
        dtype: torch.dtype,
        capacity_limit: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """kv_heads: of all layers, or of each: pruned ones have fewer. Raises ValueError for a negative limit."""
        if capacity_limit < 0:
            raise ValueError(f"capacity_limit is {capacity_limit}; it must be 0 or more")
        self.length = 0  # positions held; read-only for others
        self.capacity_limit = capacity_limit
        self._heads = [kv_heads] * num_layers if isinstance(kv_heads, int) else list(kv_heads)
        # Keys and values of all layers, [2, kv_heads of one layer after the other, capacity, head_dim]: a head's
        # positions lie side by side, as attention reads them.
        self._lay_out(torch.empty((2, sum(self._heads), 0, head_dim), dtype=dtype, device=device))

    @property
    def nbytes(self) -> int:
        """Bytes allocated, whether filled or not."""
        return self._store.nbytes

    def can_append(self, rows: int) -> bool:
        return self.length + rows <= self.capacity_limit

    def reserve(self, rows: int, spare: int | None = None) -> None:
        """Makes room for `rows` more positions. Raises CacheFull, changing nothing, where the limit forbids it.

        spare: where there is too little, room for so many beyond them is made; None: it is doubled.
        """
        needed = self.length + rows
        if needed <= self._capacity:
            return
        if needed > self.capacity_limit:
            raise CacheFull(f"{self.length} + {rows} positions do not fit in {self.capacity_limit}")
        wished = max(_FIRST_CAPACITY, 2 * self._capacity, needed) if spare is None else needed + spare
        self._resize(min(self.capacity_limit, wished))

    def shrink(self, most: int, to: int) -> None:
        """Where there is room for more than `most` positions, lets go of all but `to`, and what is held."""
        if self._capacity > most:
            self._resize(max(to, self.length))

    def _resize(self, capacity: int, dropped: int = 0) -> None:
        two, heads, _, head_dim = self._store.shape
        kept = self._store[..., dropped : self.length, :]
        # Made outside of inference mode, so that it can be written to in and outside of it.
        with torch.inference_mode(False), torch.no_grad():
            grown = self._store.new_empty((two, heads, capacity, head_dim))
            grown[..., : self.length - dropped, :] = kept
            self._lay_out(grown)
        self.length -= dropped

    def _lay_out(self, store: torch.Tensor) -> None:
        self._store, self._capacity = store, store.shape[2]
        self._keys: list[torch.Tensor] = list(store[0].split_with_sizes(self._heads))
        self._values: list[torch.Tensor] = list(store[1].split_with_sizes(self._heads))

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes rows k, v [rows, kv_heads, head_dim] behind the last position of one layer.

        Returns that layer's keys and values, the new rows included, as views [kv_heads, length + rows,
        head_dim] good until the next call. Raises CacheFull. The rows count once `advance` is called.
        """
        rows = k.shape[0]
        start = self.length
        end = start + rows
        if end > self._capacity:
            self.reserve(rows)
        keys, values = self._keys[layer], self._values[layer]
        if rows == 1:
            keys.select(1, start).copy_(k[0])
            values.select(1, start).copy_(v[0])
        else:
            keys.narrow(1, start, rows).copy_(k.transpose(0, 1))
            values.narrow(1, start, rows).copy_(v.transpose(0, 1))
        return keys.narrow(1, 0, end), values.narrow(1, 0, end)

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of one layer, views [kv_heads, length, head_dim] good until the next call."""
        return self._keys[layer].narrow(1, 0, self.length), self._values[layer].narrow(1, 0, self.length)

    def advance(self, rows: int) -> None:
        """Counts the rows that a step has appended to every layer. Raises CacheFull past the limit."""
        self.reserve(rows)
        self.length += rows

    def begin_as(self, other: KVCache, position: int) -> None:
        """Holds a copy of the first `position` rows of `other`, and nothing else, under its limit from now on.

        Raises ValueError, changing nothing, where `other` holds fewer.
        """
        if not 0 <= position <= other.length:
            raise ValueError(f"cannot begin with {position} rows of a cache that holds {other.length}")
        # Room behind them, so that the first row that follows does not have it all copied again.
        capacity = min(other.capacity_limit, position + _FIRST_CAPACITY) if position else 0
        two, heads, _, head_dim = other._store.shape
        with torch.inference_mode(False), torch.no_grad():
            store = other._store.new_empty((two, heads, capacity, head_dim))
            store[..., :position, :] = other._store[..., :position, :]
            self._heads = other._heads
            self._lay_out(store)
        self.length, self.capacity_limit = position, other.capacity_limit

    def drop_oldest(self, rows: int) -> None:
        """Forgets the first rows; the one behind them is row 0 then. Raises ValueError where fewer are held."""
        if not 0 <= rows <= self.length:
            raise ValueError(f"cannot drop {rows} rows of {self.length}")
        self._resize(self._capacity - rows, rows)

    def put_before(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """The other way round: rows [rows, kv_heads, head_dim] of a cache of one layer become its first.

        Raises CacheFull.
        """
        rows = keys.shape[0]
        if self.length + rows > self.capacity_limit:
            raise CacheFull(f"{rows} + {self.length} positions do not fit in {self.capacity_limit}")
        two, heads, _, head_dim = self._store.shape
        with torch.inference_mode(False), torch.no_grad():
            grown = self._store.new_empty((two, heads, self._capacity + rows, head_dim))
            grown[..., rows : rows + self.length, :] = self._store[..., : self.length, :]
            for at, each in enumerate((keys, values)):
                grown[at, :, :rows] = each.transpose(0, 1)
            self._lay_out(grown)
        self.length += rows

    def truncate(self, position: int) -> None:
        """Forgets the rows from `position` on. Raises ValueError unless 0 <= position <= length."""
        if not 0 <= position <= self.length:
            raise ValueError(f"cannot truncate to position {position}: the cache holds {self.length}")
        self.length = position

    def keep(self, position: int, slots: Sequence[int]) -> None:
        """Keeps the rows before `position` and, behind them, those in `slots`, in that order; forgets all others.

        What stays of a tree of rows once one of its paths is chosen. Raises ValueError unless the slots ascend from
        `position` on and are held.
        """
        ascending = all(before < after for before, after in pairwise([position - 1, *slots, self.length]))
        if position < 0 or not ascending:
            raise ValueError(f"cannot keep rows {list(slots)} behind {position}: the cache holds {self.length}")
        end = position + len(slots)
        if slots and slots[-1] != end - 1:
            index = put(torch.tensor(slots), self._store.device)
            with torch.inference_mode(False), torch.no_grad():
                self._store[..., position:end, :] = self._store.index_select(2, index)
        self.length = end
