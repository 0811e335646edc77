"""What a group is asked, from any thread, and in which steps its one asking thread takes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty
from time import monotonic
from weakref import WeakSet

import torch

from device_agent.group.asking.turns import GroupTurn, GroupTurns, Portion
from device_agent.group.messages.heads import BatchHead, GroupHead, ReadHead, RowsHead

Deliver = Callable[[torch.Tensor], object]


@dataclass(frozen=True, eq=False)
class GroupAsk:
    """A head for all members; of a step also its rows ``[rows, hidden]``, and who gets the outputs, on a thread. Of
    means of heads ``hidden`` has these, as ``MeansHead`` says."""

    head: GroupHead
    hidden: torch.Tensor | None = None
    deliver: Deliver | None = None


class GroupAsks:
    """A queue that makes steps: what is put in and what is taken are both ``GroupAsk``.

    Every step that is taken has outputs, so that it is known when it is done; they must be delivered in the order of
    the steps.
    """

    def __init__(self, turns: GroupTurns[GroupAsk]) -> None:
        self._turns = turns
        self._changed = threading.Condition()
        """Guards all of it."""
        self._over = False
        self._begun: dict[GroupAsk, list[torch.Tensor]] = {}
        """Outputs of what went in portions, as far as they are there."""
        self._dropped: WeakSet[GroupAsk] = WeakSet()
        """Of which portions may be under way whose outputs nobody wants."""

    def put(self, asked: GroupAsk | None) -> None:
        """Something is asked; None: nothing will be taken any more."""
        with self._changed:
            if asked is None:
                self._over = True
            else:
                for dropped in self._turns.put(asked, asked.head, monotonic()):
                    self._dropped.add(dropped)
                    self._begun.pop(dropped, None)
            self._changed.notify()

    def only(self, session: int | None) -> None:
        """All others wait until this session has had what it asks; None: they go on."""
        with self._changed:
            self._turns.only = session
            self._changed.notify()

    def get(self, timeout: float) -> GroupAsk | None:
        """The next step, or anything else that was asked; None when it is over. Raises ``Empty`` after ``timeout``
        seconds."""
        deadline = monotonic() + timeout
        with self._changed:
            while not self._over:
                now = monotonic()
                turn = self._turns.next(now)
                if turn.portions:
                    return self._made(turn)
                left_s = deadline - now
                if left_s <= 0:
                    raise Empty
                self._changed.wait(left_s if turn.wait_s is None else min(left_s, turn.wait_s))
            return None

    def _made(self, turn: GroupTurn[GroupAsk]) -> GroupAsk:
        """One step of all portions."""
        [first, *more] = turn.portions
        if turn.short is None:
            return first.item
        deliver = partial(self._deliver, turn)
        if not more:
            return GroupAsk(_head(first), _rows(first), deliver)
        parts = tuple(head for each in turn.portions if isinstance(head := _head(each), RowsHead))
        return GroupAsk(BatchHead(parts), torch.cat([_rows(each) for each in turn.portions]), deliver)

    def _deliver(self, turn: GroupTurn[GroupAsk], outputs: torch.Tensor) -> None:
        """To each what it wants of a step's outputs; before, the next step may be made."""
        with self._changed:
            self._turns.answered(bool(turn.short), monotonic())
            self._changed.notify()
        end = 0
        for each in turn.portions:
            end += len(each.rows) if len(turn.portions) > 1 else len(outputs)
            found = self._complete(each, outputs[end - _wanted(each) : end])
            if found is not None and each.item.deliver is not None:
                each.item.deliver(found)

    def _complete(self, portion: Portion[GroupAsk], wanted: torch.Tensor) -> torch.Tensor | None:
        """The outputs of all that was asked, once its last portion has come with these; None before."""
        if len(portion.rows) == len(_rows_of(portion)):
            return wanted
        with self._changed:
            if portion.item in self._dropped:
                return None
            self._begun.setdefault(portion.item, []).append(wanted)
            if portion.rows.stop < len(_rows_of(portion)):
                return None
            return torch.cat(self._begun.pop(portion.item))


def _rows_of(portion: Portion[GroupAsk]) -> torch.Tensor:
    assert portion.item.hidden is not None
    return portion.item.hidden


def _rows(portion: Portion[GroupAsk]) -> torch.Tensor:
    return _rows_of(portion)[portion.rows.start : portion.rows.stop]


def _wanted(portion: Portion[GroupAsk]) -> int:
    """How many of a portion's last rows whoever asked wants."""
    head = portion.item.head
    assert isinstance(head, (RowsHead, ReadHead))
    return max(0, portion.rows.stop - max(portion.rows.start, head.rows - head.want))


def _head(portion: Portion[GroupAsk]) -> RowsHead | ReadHead:
    """What the members are told of it: one row is wanted at least."""
    head = portion.item.head
    assert isinstance(head, (RowsHead, ReadHead))
    if isinstance(head, ReadHead):
        return head
    position = head.position + portion.rows.start
    return RowsHead(head.session, position, len(portion.rows), max(1, _wanted(portion)))
