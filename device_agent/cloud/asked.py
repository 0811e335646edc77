"""What a session may ask of the cloud, the pieces in which its rows go there, and where the time of a turn went."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch

from split_model.hints import TimeSpent, TurnSpent
from split_model.tree import Tree
from wire.errors import SessionFailed
from wire.frames import Tensor
from wire.outbox import Outgoing
from wire.session_messages import Result


@dataclass
class Turn:
    """The times of one turn of a session: of its prompt, and from one wanted answer of the cloud behind it to the next.
    ``attachment.count`` adds to it.

    Attributes:
        prompt_end: the position at which its prompt ends.
        at: up to when it is known where the time went, in seconds of the clock that all moments here are of.
        asked_at: when its first rows were handed over, from which the prompt's time is counted.
        prompt, decode, answers: as of ``TurnSpent``; no prompt until it is answered.
    """

    prompt_end: int
    at: float
    asked_at: float | None = None
    prompt: TimeSpent | None = None
    decode: TimeSpent = field(default_factory=TimeSpent)
    answers: int = 0

    @property
    def spent(self) -> TurnSpent | None:
        """Where the time went so far; None until the prompt is answered."""
        return None if self.prompt is None else TurnSpent(self.prompt, self.decode, self.answers)

    def fork(self, position: int, now: float) -> Turn:
        """That of a session which goes on ``now`` where this one was at ``position``, its prompt being answered: the
        prompt's time is the same, the rest its own."""
        return Turn(position, now, prompt=self.prompt)


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


class Attached(Protocol):
    """A session's place at a cloud server, as its link sees it."""

    def answered(self, result: Result, tensors: tuple[Tensor, ...]) -> None:
        """A forward's result has come."""

    def advised(self, begin: int, sizes: Sequence[int]) -> None:
        """How to cut its rows from position ``begin`` on into chunks."""

    def ended(self, failure: SessionFailed) -> None:
        """The cloud server has ended the session, or is to be left."""

    def lost(self) -> None:
        """The connection is gone."""

    def moves(self) -> bool:
        """The cloud server drains: go on elsewhere; whether that is under way. Called again and again until it has."""

    def pump(self) -> None:
        """The link has room again for what was held."""

    def look(self, now: float) -> None:
        """Called every second, to see what is overdue."""
