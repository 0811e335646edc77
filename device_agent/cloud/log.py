"""What a session has asked of the cloud: what of it is acknowledged, what is pending, and what must be sent (again).

The cloud answers in order. A forward is acknowledged when it is answered; from then on its rows are history. A
truncation is acknowledged once everything before it is. When a session is attached anew, ``begin`` lays out what the
cloud server there needs: the history from some position on, then all that is pending, in order.

Rows that branch are never history, only those of them that are kept. Where the session has moved between their answer
and the choice, nobody there has heard of the others: the kept ones are sent as history like any that are missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from device_agent.cloud.asked import Asked, Piece, Request
from split_model.history import History
from split_model.tensor_bytes import joined
from wire.errors import Code, SessionFailed


class SessionLog:
    """The log of one session.

    Attributes:
        history: the acknowledged rows.
        position: where the next row goes, once all that is pending is done.
        branching: the forward behind it whose rows branch, until some of them are kept or all forgotten.
        lowest: the fewest rows that history has had since this was set; for who copies it.
    """

    def __init__(self) -> None:
        self.history = History()
        self.position = 0
        self.branching: Asked | None = None
        self.lowest = 0
        self._there = False
        """Whether its rows were sent where the session is attached now, or are still to be."""
        self._pending: deque[Request] = deque()
        self._confirmed = 0
        self._outgoing: deque[Request] = deque()
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
        asked, chosen = self.branching, tuple(nodes)
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

    def fork(self, position: int) -> SessionLog:
        """The log of a session that has come to ``position``, all of whose rows are history here, and asked nothing."""
        forked = SessionLog()
        forked.history, forked.position = self.history.fork(position), position
        return forked

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

    def next(self, most: int, room: int, most_of_history: int) -> Piece | int | tuple[int, ...] | None:
        """What to send next: a piece of up to ``most`` rows, the position of a truncation, or the nodes that are kept.

        History is cut into pieces of up to ``most_of_history`` rows where that is less. Rows that branch are not cut:
        what is too many of them is left out, and never answered.

        None when there is nothing, or when the piece is of more than ``room`` rows. What is given counts as sent.

        Raises:
            SessionFailed: a node was chosen already that would have to be left out.
        """
        if self.replaying:
            rows = min(most, most_of_history, self._replay_end - self._replay_at)
            if rows > room:
                return None
            hidden = self.history.rows(self._replay_at, self._replay_at + rows)
            piece = Piece(hidden, self._sent_position, 0, None, False)
            self._replay_at += rows
        elif not self._outgoing:
            return None
        elif isinstance(head := self._outgoing[0], Asked):
            if head.tree is not None and len(head.hidden) > most:
                self._check_unchosen(most)
                head.shorten(most)
            total = len(head.hidden)
            end = min(total, self._cut + most)
            rows, last = end - self._cut, end == total
            if rows > room:
                return None
            want = max(0, min(rows, head.want - (total - end)))
            parents = head.tree.parents if head.tree is not None else None
            piece = Piece(head.hidden[self._cut : end], self._sent_position, want, head, last, parents)
            self._cut = 0 if last else end
            if last:
                self._outgoing.popleft()
        else:
            self._outgoing.popleft()
            self._sent_position = head if isinstance(head, int) else self._sent_position + len(head)
            return head
        if piece.parents is None:
            self._sent_position += rows
        self._sent.append(piece)
        return piece

    def answered(self, rows: torch.Tensor | None) -> Piece:
        """The oldest piece that was sent, which was answered with ``rows``, None where none were wanted of it. Whoever
        waits for its forward has the outputs once it is the last of it."""
        piece = self._sent.popleft()
        asked = piece.asked
        if asked is None:
            self._confirmed = min(piece.position + piece.hidden.shape[0], self.history.length)
            return piece
        if rows is not None:
            asked.outputs.append(rows)
        if not piece.last:
            return piece
        first = self._pending.popleft()
        assert first is asked
        if asked.tree is None:
            self.history.append(asked.hidden)
        self._confirmed = self.history.length
        while self._pending and not isinstance(behind := self._pending[0], Asked):
            self._pending.popleft()
            if isinstance(behind, int):
                self._cut_back(behind)
            else:
                self._note_kept(asked, behind)
        if not asked.answer.done():
            asked.answer.set_result(joined(asked.outputs) if asked.outputs else asked.hidden[:0])
        return piece

    def fail(self, failure: SessionFailed) -> None:
        """Whoever waits for rows gets ``failure`` instead."""
        for asked in self.pending:
            if not asked.answer.done():
                asked.answer.set_exception(failure)

    def _check_unchosen(self, rows: int) -> None:
        for behind in self._outgoing:
            if isinstance(behind, tuple) and any(node >= rows for node in behind):
                raise SessionFailed(
                    Code.CREDIT_EXCEEDED, "this cloud server takes too few rows at once for this session"
                )

    def _note_kept(self, asked: Asked, chosen: tuple[int, ...]) -> None:
        # Not confirmed: what was chosen may never have arrived.
        for node in chosen:
            self.history.append(asked.hidden[node : node + 1])

    def _cut_back(self, position: int) -> None:
        self.history.truncate(position)
        self.lowest = min(self.lowest, position)
        self._confirmed = min(self._confirmed, position)
        self._replay_end = min(self._replay_end, position)
