"""The same collectives for tensors on a device that is not the CPU.

What is sent crosses to the host once, and what comes crosses to the device once, on the thread that waits for it.
Tensors on the CPU are sent from where they lie, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from peers.collectives import Collectives
from peers.exchange import Exchange
from peers.gathering import OwnTiles
from peers.reduction import Reduction
from peers.tiles import Tile


class DeviceCollectives(Collectives):
    """See ``Collectives``, whose callers need not know where their tensors are."""

    def all_gather_given(
        self, whole: torch.Tensor, shares: Sequence[int], *, pieces: int = 1, label: str = ""
    ) -> OwnTiles:
        if whole.is_cpu:
            return super().all_gather_given(whole, shares, pieces=pieces, label=label)
        host = _beside(whole)
        own = super().all_gather_given(host, shares, pieces=pieces, label=label)
        mine = _rows(shares, self._ring.place)

        def landed(tile: Tile | None) -> None:
            if tile is None:
                _copy(host, whole, range(mine.start))
                _copy(host, whole, range(mine.stop, len(host)))
            elif tile.begin not in mine:
                _copy(host, whole, range(tile.begin, tile.end))

        own.exchange.lands(landed)
        return _GivenTiles(own, whole, host)

    def gather(self, whole: torch.Tensor, shares: Sequence[int], place: int, *, label: str = "") -> Exchange:
        if whole.is_cpu:
            return super().gather(whole, shares, place, label=label)
        host, mine = _beside(whole), _rows(shares, self._ring.place)
        if place == self._ring.place:
            exchange = super().gather(host, shares, place, label=label)

            def landed(tile: Tile | None) -> None:
                for rows in (range(mine.start), range(mine.stop, len(host))):
                    _copy(host, whole, rows)

            exchange.lands(landed)
            return exchange
        _copy(whole, host, mine)
        return super().gather(host, shares, place, label=label)

    def reduce_scatter(
        self, parts: torch.Tensor, shares: Sequence[int], *, pieces: int = 1, given: bool = True, label: str = ""
    ) -> Reduction:
        if parts.is_cpu:
            return super().reduce_scatter(parts, shares, pieces=pieces, given=given, label=label)
        host, mine = _beside(parts), _rows(shares, self._ring.place)
        reduction = super().reduce_scatter(host, shares, pieces=pieces, given=False, label=label)
        found = _GivenShares(reduction, parts, host, shares)
        for place in reduction.order if given else ():
            found.give(place)
        found.exchange.lands(lambda tile: _copy(host, parts, mine))
        return found

    def all_reduce(self, tensor: torch.Tensor, *, label: str = "") -> Exchange:
        if tensor.is_cpu:
            return super().all_reduce(tensor, label=label)
        host = tensor.cpu()
        return _landing(super().all_reduce(host, label=label), host, tensor)

    def send(self, tensor: torch.Tensor, rank: int, tag: int, *, label: str = "") -> Exchange:
        return super().send(tensor if tensor.is_cpu else tensor.cpu().contiguous(), rank, tag, label=label)

    def receive(self, tensor: torch.Tensor, rank: int, tag: int, *, label: str = "") -> Exchange:
        if tensor.is_cpu:
            return super().receive(tensor, rank, tag, label=label)
        host = _beside(tensor)
        return _landing(super().receive(host, rank, tag, label=label), host, tensor)


class _GivenTiles(OwnTiles):
    """Own tiles that are copied to the host as they are given."""

    def __init__(self, own: OwnTiles, whole: torch.Tensor, host: torch.Tensor) -> None:
        self.exchange, self.tiles = own.exchange, own.tiles
        self._own, self._whole, self._host, self._next = own, whole, host, iter(own.tiles)

    def give(self) -> None:
        tile = next(self._next, None)
        if tile is not None:
            _copy(self._whole, self._host, range(tile.begin, tile.end))
        self._own.give()


class _GivenShares(Reduction):
    """Parts of shares that are copied to the host as they are given."""

    def __init__(self, own: Reduction, parts: torch.Tensor, host: torch.Tensor, shares: Sequence[int]) -> None:
        self.exchange, self.order = own.exchange, own.order
        self._of, self._parts, self._host, self._shares = own, parts, host, shares

    def give(self, place: int) -> None:
        _copy(self._parts, self._host, _rows(self._shares, place))
        self._of.give(place)


def _beside(tensor: torch.Tensor) -> torch.Tensor:
    """As much on the host."""
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _rows(shares: Sequence[int], place: int) -> range:
    ends = [0, *accumulate(shares)]
    return range(ends[place], ends[place + 1])


def _copy(source: torch.Tensor, target: torch.Tensor, rows: range) -> None:
    """Rows to the same place on the other side."""
    if rows:
        target[rows.start : rows.stop].copy_(source[rows.start : rows.stop])


def _landing(exchange: Exchange, host: torch.Tensor, tensor: torch.Tensor) -> Exchange:
    """Where what comes to the host goes on to the device."""

    def landed(tile: Tile | None) -> None:
        tensor.copy_(host)

    exchange.lands(landed)
    return exchange
