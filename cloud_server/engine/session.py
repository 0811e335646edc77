"""One session as the engine has it: what is in its pages, what waits, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from cloud_server.cache.moving import Key
from cloud_server.cache.span import PagedSpan
from cloud_server.schedule.plan import Portion
from split_model.tree import Branches
from wire.errors import SessionFailed


@dataclass(frozen=True)
class Answered:
    """A completed forward.

    Attributes:
        rows: ``[want, hidden]``, None when nothing was wanted.
        queue_s, step_s: how long its last row waited for its step, and how long that step took.
        step_rows: rows of that step.
        steps, steps_s: all that had rows of it, and how long they took together.
    """

    sequence: int
    rows: torch.Tensor | None
    queue_s: float
    step_s: float
    step_rows: int
    steps: int
    steps_s: float


Deliver = Callable[["Answered | SessionFailed"], None]
"""Is called on the event loop with what became of a forward, or why the whole session has ended. Must not raise."""


@dataclass(eq=False)
class Session:
    """A session's rows: those in its pages, those in steps under way, and the forwards that wait, by their numbers.

    Attributes:
        length: positions whose keys and values are in the pages, once the steps under way are done.
        done: positions whose keys and values are there now.
        request_id: of what it works for, for logs; empty where nobody has said.
    """

    key: Key
    deliver: Deliver
    length: int = 0
    done: int = 0
    request_id: str = ""
    waiting: dict[int, Queued] = field(default_factory=dict)
    under_way: list[Stretch] = field(default_factory=list)


@dataclass(eq=False)
class Queued:
    """A forward that has been admitted and is not answered.

    Attributes:
        rows: how many it has; ``want``: how many of the last are to be answered.
        nodes: whether they are nodes behind the session's position; ``branching``: where those stand and what they see,
            None where they are a line.
        hidden: its rows once they are there, ``[rows, hidden]``, and ``arrived``, when that was.
        outputs: what steps have made of its rows, as far as they are wanted and there.
        steps, steps_s: those that had rows of it so far, and how long they took.
    """

    session: Session
    sequence: int
    rows: int
    want: int
    nodes: bool = False
    branching: Branches | None = None
    hidden: torch.Tensor | None = None
    arrived: float = 0.0
    outputs: list[torch.Tensor] = field(default_factory=list)
    steps: int = 0
    steps_s: float = 0.0

    def part(self, begin: int, rows: int) -> torch.Tensor:
        """Return ``rows`` of its rows from row ``begin`` on, as a view."""
        assert self.hidden is not None, "only what has come is queued"
        return self.hidden if rows == self.rows else self.hidden[begin : begin + rows]

    def take(self, outputs: torch.Tensor, seconds: float) -> None:
        """Keep what is wanted of what a step has made of its next rows, in so many seconds."""
        self.steps += 1
        self.steps_s += seconds
        if self.want:
            self.outputs = [outputs] if outputs.shape[0] >= self.want else [*self.outputs, outputs]

    def wanted(self) -> torch.Tensor | None:
        """Return the rows to be answered, once all are there; None when none are wanted."""
        if not self.want:
            return None
        last = self.outputs[-1]
        return (last if last.shape[0] >= self.want else torch.cat(self.outputs))[-self.want :]


@dataclass(eq=False)
class Stretch:
    """A session's rows in one step.

    Attributes:
        portions: what they come from, one behind the other.
        span: where they are stored.
        end: positions below it count once the step is done; a truncation meanwhile lowers it.
    """

    session: Session
    portions: list[Portion[Key]]
    span: PagedSpan
    end: int
