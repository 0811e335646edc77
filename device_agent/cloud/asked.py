"""What a session may ask of the cloud, and the pieces in which its rows go there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from device_agent.cloud.times import Turn
from split_model.tree import Tree
from wire.outbox import Outgoing


@dataclass
class Asked:
    """A forward of ``turn`` that is pending: rows ``hidden``, of which the outputs of the last ``want`` will be the
    answer; the nodes of ``tree`` where they branch."""

    hidden: torch.Tensor
    want: int
    answer: asyncio.Future[torch.Tensor]
    turn: Turn
    tree: Tree | None = None
    outputs: list[torch.Tensor] = field(default_factory=list)

    def shorten(self, rows: int) -> None:
        """Leave out what branches behind the first ``rows`` nodes, none of which follows a later one, and their
        outputs."""
        assert self.tree is not None
        self.want = max(0, self.want - (self.hidden.shape[0] - rows))
        self.hidden, tree = self.hidden[:rows], Tree(self.tree.trunk)
        tree.add(self.tree.parents[:rows])
        self.tree = tree


@dataclass
class Piece:
    """Rows for one frame, from ``position`` on: of history where ``asked`` is None, else of that forward."""

    hidden: torch.Tensor
    position: int
    want: int
    asked: Asked | None
    last: bool
    """Whether it ends its forward."""
    parents: Sequence[int] | None = None
    """Which nodes its rows follow, where they branch; -1: the last position before."""
    posted: float = 0.0
    """When it was sent; for whoever sends it."""
    frame: Outgoing | None = None
    """What carries it, which knows whether it has left; for whoever sends it."""


Request: TypeAlias = Asked | int | tuple[int, ...]
"""What may be asked: a forward, to forget all from a position on, or to go on with a path of nodes."""
