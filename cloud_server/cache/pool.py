"""The keys and values of all sessions in one piece of memory, cut into pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch

from cloud_server.cache.memory import in_small_pages
from cloud_server.cache.moving import NOWHERE, Move
from cloud_server.cache.span import PagedSpan

Moves = Sequence[Move]
"""Slots whose keys and values go to other slots, one move after the other; of single slots that are moved one after the
other all are read before any is written. What comes from ``NOWHERE`` is nought."""


class KVPool:
    """``pages`` pages of ``page_positions`` positions in each layer: a position's *slot* is a number in the pool.

    The memory is not touched before it is written, so on a CPU it is taken from the system page by page.
    """

    def __init__(
        self,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        pages: int,
        page_positions: int,
    ) -> None:
        """Raises MemoryError or RuntimeError where there is no such memory."""
        assert pages > 0 and page_positions > 0
        self.pages = pages
        self.page_positions = page_positions
        self.keys = _empty(num_layers, pages * page_positions, kv_heads, head_dim, dtype, torch.device(device))
        """``[layers, slots, kv_heads, head_dim]``; on CUDA one layer, cut into pages, is what flash-attn reads."""
        self.values = _empty(num_layers, pages * page_positions, kv_heads, head_dim, dtype, torch.device(device))
        """The same for values."""
        self._keys = self.keys.unbind(0)
        self._values = self.values.unbind(0)

    @staticmethod
    def bytes_of_page(num_layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, page_positions: int) -> int:
        """Bytes that one page takes in all layers, keys and values."""
        return 2 * num_layers * page_positions * kv_heads * head_dim * dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool, touched or not."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.keys.device

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, ``[slots, kv_heads, head_dim]``."""
        return self._keys[layer], self._values[layer]

    def runs(self, span: PagedSpan) -> list[range]:
        """The slots of a session's positions, those of the new rows included, as few runs of consecutive ones.

        Raises ``ValueError`` where the pages are too few or not of this pool.
        """
        size = self.page_positions
        pages = list(span.pages[: -(-span.end // size)])
        if span.rows < 0 or span.start < 0 or len(pages) * size < span.end:
            raise ValueError(f"{len(pages)} pages do not hold {span.rows} rows from position {span.start} on")
        if pages and not 0 <= min(pages) <= max(pages) < self.pages:
            raise ValueError(f"a page lies outside the pool's {self.pages}")
        surplus = len(pages) * size - span.end
        if pages and pages == list(range(pages[0], pages[0] + len(pages))):
            return [range(pages[0] * size, (pages[-1] + 1) * size - surplus)]
        found: list[range] = []
        for page in pages:
            if found and found[-1].stop == page * size:
                found[-1] = range(found[-1].start, (page + 1) * size)
            else:
                found.append(range(page * size, (page + 1) * size))
        if found:
            found[-1] = range(found[-1].start, found[-1].stop - surplus)
        return found

    def move(self, moves: Moves) -> None:
        """Take the keys and values of every layer elsewhere.

        Raises ``ValueError`` for a slot that is not here, or a piece that goes to where it is itself.
        """
        slots = self.pages * self.page_positions
        for begin, to, count in moves:
            if not (0 < count <= slots - to and to >= 0 and (0 <= begin <= slots - count or begin == NOWHERE)):
                raise ValueError(f"a slot lies outside the pool's {self.pages} pages")
            if count > 1 and begin != NOWHERE and abs(begin - to) < count:
                raise ValueError("a piece overlaps the place that it goes to")
        for single, group in groupby(moves, lambda move: move[2] == 1):
            if single:
                self._move_singles({to: begin for begin, to, _ in group})  # What comes last to a slot stays.
            else:
                for move in group:  # Piece by piece: many forks may begin at once, each as long as its prompt.
                    self._move_piece(*move)

    def _move_piece(self, begin: int, to: int, count: int) -> None:
        for store in (self.keys, self.values):
            piece = store.narrow(1, to, count)
            if begin == NOWHERE:
                piece.zero_()
            else:
                piece.copy_(store.narrow(1, begin, count))

    def _move_singles(self, begin_of: Mapping[int, int]) -> None:
        ends, begins = torch.tensor(list(begin_of.items()), dtype=torch.int64).unbind(1)
        moved, cleared = (ends[each].to(self.device) for each in (begins != NOWHERE, begins == NOWHERE))
        begins = begins[begins != NOWHERE].to(self.device)
        for store in (self.keys, self.values):
            store.index_copy_(1, moved, store[:, begins])  # index_select would copy the whole store first.
            store.index_fill_(1, cleared, 0)


def _empty(
    layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """``[layers, slots, kv_heads, head_dim]``, in memory as attention reads it there.

    A CPU goes through one head after the other and reads its positions up to 1.6 times faster where they lie side
    by side. CUDA kernels want the heads of a position together.
    """
    # Made outside of inference mode, so that it can be written to in and outside of it.
    with torch.inference_mode(False):
        if device.type == "cpu":
            flat = in_small_pages(layers * kv_heads * slots * head_dim, dtype)
            return flat.view(layers, kv_heads, slots, head_dim).transpose(1, 2)
        return torch.empty((layers, slots, kv_heads, head_dim), dtype=dtype, device=device)
