"""A member's worker and its collectives with a watch on them: how long it computes, waits and moves what.

The product's own code runs; only when its waits begin and end is written down.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from bench.edge.job import Moment

from device_agent.group.messages.heads import GroupHead
from device_agent.group.rows.sending import Tag
from device_agent.group.steps.worker import Worker
from peers.collectives import Collectives
from peers.exchange import Exchange
from peers.gathering import OwnTiles
from peers.reduction import Reduction


class WatchedCollectives(Collectives):
    """Writes down what its callers wait for.

    Attributes:
        waits: seconds, by kind.
        exchanges: places at which it waited.
        entered: when the rows of this step had come from the portal; 0: not yet.
    """

    def begin(self) -> None:
        """A step begins."""
        self.waits: defaultdict[str, float] = defaultdict(float)
        self.exchanges = 0
        self._last, self._rank = ("", ""), 0
        self.entered = 0.0

    def all_gather_given(self, whole: torch.Tensor, shares: Sequence[int], **options: Any) -> OwnTiles:
        found = super().all_gather_given(whole, shares, **options)
        self._watched(found.exchange, "all-gather")
        return found

    def gather(self, whole: torch.Tensor, shares: Sequence[int], place: int, **options: Any) -> Exchange:
        return self._watched(super().gather(whole, shares, place, **options), "gather")

    def reduce_scatter(self, parts: torch.Tensor, shares: Sequence[int], **options: Any) -> Reduction:
        found = super().reduce_scatter(parts, shares, **options)
        self._watched(found.exchange, "reduce-scatter")
        return found

    def all_reduce(self, tensor: torch.Tensor, **options: Any) -> Exchange:
        return self._watched(super().all_reduce(tensor, **options), "all-reduce")

    def receive(self, tensor: torch.Tensor, rank: int, tag: int, **options: Any) -> Exchange:
        exchange = super().receive(tensor, rank, tag, **options)
        label = str(options.get("label", ""))
        if tag in (Tag.LEND, Tag.BACK) and rank <= self._rank:
            self._last = "", ""  # Of the layer's other half: who lends asks its lenders in their order, once for each.
        self._rank = rank
        return exchange if tag == Tag.HEAD else self._watched(exchange, Tag(tag).name.lower(), label)

    def _watched(self, exchange: Exchange, kind: str, label: str = "") -> Exchange:
        until = exchange._until
        # What one layer receives of several members is waited for at one place.
        self.exchanges += (kind, label) != self._last or not label
        self._last = kind, label

        def timed(condition: Callable[[], bool], within_s: float) -> None:
            began = time.perf_counter()
            try:
                until(condition, within_s)
            finally:
                ended = time.perf_counter()
                self.waits[kind] += ended - began
                if kind == "entry":
                    self.entered = ended

        setattr(exchange, "_until", timed)  # noqa: B010
        return exchange


class WatchedWorker(Worker):
    """Writes down each step; ``watch`` are the collectives that it was made with.

    Attributes:
        moments: of the steps, in their order.
    """

    watch: WatchedCollectives
    moments: list[Moment]

    def do(self, head: GroupHead, given: torch.Tensor | None = None) -> torch.Tensor | None:
        self.watch.begin()
        began, cpu = time.perf_counter(), time.process_time()
        found = super().do(head, given)
        if self.watch.exchanges:
            left = time.perf_counter()
            waits = dict(self.watch.waits)
            spent = time.process_time() - cpu
            self.moments.append(Moment(self.watch.entered or began, left, waits, self.watch.exchanges, spent))
        return found
