"""What a session has asked of the cloud: what of it is acknowledged, what is pending, and what must be sent (again).

The cloud answers in order. A forward is acknowledged when it is answered; from then on its rows are history. A
truncation is acknowledged once everything before it is. When a session is attached anew, ``begin`` lays out what the
cloud server there needs: the history from some position on, then all that is pending, in order.

Rows that branch are never history, only those of them that are kept. Where the session has moved between their answer
and the choice, nobody there has heard of the others: the kept ones are sent as history like any that are missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from device_agent.history import History
from split_model.tree import Tree


@dataclass
class Asked:
    """A forward that is pending: rows ``hidden``, of which the outputs of the last ``want`` will be the answer; the
    nodes of ``tree`` where they branch."""

    hidden: torch.Tensor
    want: int
    answer: asyncio.Future[torch.Tensor]
    tree: Tree | None = None
    outputs: list[torch.Tensor] = field(default_factory=list)


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
    mark: int = 0
    """Bytes that its link has sent once it has left; for whoever sends it."""


@dataclass(frozen=True)
class Chosen:
    """The nodes of rows that branch which go on."""

    nodes: tuple[int, ...]


class SessionLog:
    """The log of one session.

    Attributes:
        history: the acknowledged rows.
        position: where the next row goes, once all that is pending is done.
        branching: the forward behind it whose rows branch, until some of them are kept or all forgotten.
    """

    def __init__(self) -> None:
        self.history = History()
        self.position = 0
        self.branching: Asked | None = None
        self._there = False
        """Whether its rows were sent where the session is attached now, or are still to be."""
        self._pending: deque[Asked | int | Chosen] = deque()
        self._confirmed = 0
        self._outgoing: deque[Asked | int | Chosen] = deque()
        self._replay_at = self._replay_end = 0
        self._cut = 0
        """Rows sent already of the forward that is next."""
        self._sent: deque[Piece] = deque()
        self._sent_position = 0

    @property
    def pending(self) -> list[Asked]:
        """The forwards that are not answered, oldest first."""
        return [each for each in self._pending if isinstance(each, Asked)]

    @property
    def waiting(self) -> bool:
        """Whether a forward is not answered."""
        return bool(self._pending)  # Truncations and choices never stand first.

    @property
    def oldest(self) -> Piece | None:
        """What the next answer is for: the first piece that was sent and not answered."""
        return self._sent[0] if self._sent else None

    @property
    def sent(self) -> list[Piece]:
        """What was sent and not answered, oldest first."""
        return list(self._sent)

    @property
    def settled(self) -> bool:
        """Whether the cloud has been sent everything and has answered it."""
        return not (self._sent or self.unsent)

    @property
    def replaying(self) -> bool:
        """Whether history is left to send."""
        return self._replay_at < self._replay_end

    @property
    def unsent(self) -> bool:
        """Whether anything is left to send."""
        return bool(self._outgoing) or self.replaying

    @property
    def resumable(self) -> int:
        """The position up to which the session's rows are surely as they should be where it was attached last."""
        return min([self._confirmed, *(each for each in self._pending if isinstance(each, int))])

    @property
    def undivided(self) -> int:
        """Rows that must go in one frame: those of the largest pending forward that branches."""
        return max((each.hidden.shape[0] for each in self.pending if each.tree is not None), default=0)

    def forward(self, asked: Asked) -> None:
        """Ask for new rows."""
        assert self.branching is None
        if asked.tree is None:
            self.position += asked.hidden.shape[0]
        else:
            self.branching, self._there = asked, True
        self._pending.append(asked)
        self._outgoing.append(asked)

    def truncate(self, position: int) -> None:
        """Ask to forget every row from ``position`` on."""
        assert 0 <= position <= self.position, (position, self.position)
        self.position, self.branching = position, None
        if self._outgoing and isinstance(last := self._outgoing[-1], int):
            # One is enough; and the rows that the first would leave may never be replayed.
            self._outgoing[-1] = min(last, position)
        else:
            self._outgoing.append(position)
        if self._pending:
            self._pending.append(position)
        else:
            self._cut_back(position)

    def keep(self, nodes: Sequence[int]) -> None:
        """Ask to go on behind a path of the rows that branch."""
        asked, chosen = self.branching, Chosen(tuple(nodes))
        assert asked is not None
        self.branching = None
        self.position += len(nodes)
        if self._pending:
            self._pending.append(chosen)
            self._outgoing.append(chosen)
            return
        if self._there:
            self._outgoing.append(chosen)
        elif not self.replaying:
            self._replay_at = self.history.length
        self._note_kept(asked, chosen)
        if not self._there:
            self._replay_end = self.history.length

    def begin(self, position: int) -> None:
        """The session is attached anew, where its first ``position`` rows are held and nothing else."""
        assert 0 <= position <= self.history.length, (position, self.history.length)
        self._confirmed = self._sent_position = self._replay_at = position
        self._replay_end = self.history.length
        self._outgoing = deque(self._pending)
        self._there = bool(self._pending)
        self._cut = 0
        self._sent.clear()
        for each in self.pending:
            each.outputs.clear()

    def next(self, most: int, room: int, most_of_history: int | None = None) -> Piece | int | Chosen | None:
        """What to send next: a piece of up to ``most`` rows, the position of a truncation, or the nodes that are kept.

        History is cut into pieces of up to ``most_of_history`` rows where that is less. Rows that branch are not cut.

        None when there is nothing, or when the piece is of more than ``room`` rows. What is given counts as sent.
        """
        asked: Asked | None = None
        parents: Sequence[int] | None = None
        if self.replaying:
            rows = min(most, self._replay_end - self._replay_at)
            if most_of_history is not None:
                rows = min(rows, most_of_history)
            if rows > room:
                return None
            hidden = self.history.rows(self._replay_at, self._replay_at + rows)
            want, last = 0, False
            self._replay_at += rows
        elif self._outgoing:
            head = self._outgoing[0]
            if isinstance(head, int):
                self._outgoing.popleft()
                self._sent_position = head
                return head
            if isinstance(head, Chosen):
                self._outgoing.popleft()
                self._sent_position += len(head.nodes)
                return head
            asked, total = head, head.hidden.shape[0]
            end = min(total, self._cut + most)
            if head.tree is not None:
                parents, end = head.tree.parents, total
            rows = end - self._cut
            if rows > room:
                return None
            hidden = asked.hidden if rows == total else asked.hidden[self._cut : end]
            want, last = max(0, min(rows, asked.want - (total - end))), end == total
            self._cut = 0 if last else end
            if last:
                self._outgoing.popleft()
        else:
            return None
        piece = Piece(hidden, self._sent_position, want, asked, last, parents)
        if parents is None:
            self._sent_position += rows
        self._sent.append(piece)
        return piece

    def answered(self) -> None:
        """The oldest piece was answered."""
        piece = self._sent.popleft()
        if piece.asked is None:
            self._confirmed = min(piece.position + piece.hidden.shape[0], self.history.length)
        elif piece.last:
            first = self._pending.popleft()
            assert first is piece.asked
            if piece.asked.tree is None:
                self.history.append(piece.asked.hidden)
            self._confirmed = self.history.length
            while self._pending and not isinstance(self._pending[0], Asked):
                behind = self._pending.popleft()
                if isinstance(behind, int):
                    self._cut_back(behind)
                elif isinstance(behind, Chosen):
                    self._note_kept(piece.asked, behind)

    def _note_kept(self, asked: Asked, chosen: Chosen) -> None:
        # Not confirmed: what was chosen may never have arrived.
        for node in chosen.nodes:
            self.history.append(asked.hidden[node : node + 1])

    def _cut_back(self, position: int) -> None:
        self.history.truncate(position)
        self._confirmed = min(self._confirmed, position)
        self._replay_end = min(self._replay_end, position)
