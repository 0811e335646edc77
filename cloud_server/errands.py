"""What the sessions of a device work for: the id of a request, for logs, and a span of each turn, for traces."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_server.engine.session import Answered
from service.errands import plain_id
from service.traces import NO_TRACES, UNTRACED, Facts, Span, Traces
from wire.errand import Errand
from wire.errors import Code


@dataclass(eq=False)
class _Turn:
    """One turn of a session, and what was computed for it so far."""

    request_id: str
    span: Span
    forwards: int = 0
    steps: int = 0
    queue_s: float = 0.0
    step_s: float = 0.0
    answered: bool = False

    @property
    def facts(self) -> Facts:
        return Facts(forwards=self.forwards, steps=self.steps, queue_s=self.queue_s, step_s=self.step_s)


class Errands:
    """Of one device, by the numbers of its sessions. What a device says of its errand is a stranger's word."""

    def __init__(self, traces: Traces = NO_TRACES) -> None:
        self._traces = traces
        self._traced = traces is not NO_TRACES
        self._turns: dict[int, _Turn] = {}

    def begin(self, session: int, errand: Errand | None, how: str) -> str:
        """A session works for something from now on: it is opened, resumed, forked or taken up again. Returns the
        request's id, empty where the device says none."""
        self.end(session, "taken up")
        if errand is None:
            return ""
        turn = self._turns[session] = _Turn(plain_id(errand.request_id), UNTRACED)
        if self._traced and errand.traceparent:  # Without one it would be a trace that nobody has begun.
            turn.span = self._traces.span("session", errand.traceparent)
            turn.span.note(request_id=turn.request_id, how=how)
        return turn.request_id

    def request_id(self, session: int) -> str:
        """What it works for, for logs; empty where nobody has said."""
        turn = self._turns.get(session)
        return turn.request_id if turn is not None else ""

    def answered(self, session: int, answered: Answered) -> None:
        """A forward has been computed."""
        if not self._traced or (turn := self._turns.get(session)) is None:
            return
        turn.forwards += 1
        turn.steps += answered.steps
        turn.queue_s += answered.queue_s
        turn.step_s += answered.steps_s
        if answered.rows is not None and not turn.answered:
            turn.answered = True
            turn.span.event("prompt answered", **turn.facts)

    def end(self, session: int, outcome: str, failure: Code | None = None) -> None:
        """It works for that no more. Does nothing where it has not."""
        turn = self._turns.pop(session, None)
        if turn is None:
            return
        turn.span.note(**turn.facts)
        turn.span.note(outcome=outcome)
        if failure is not None:
            turn.span.fail(failure.value)
        turn.span.end()

    def end_all(self) -> None:
        """The connection is gone."""
        for session in list(self._turns):
            self.end(session, "lost", Code.LOST)
