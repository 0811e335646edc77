"""One step: what a plan takes from the sessions, and what they get back.

Rows and pages are looked up when a step is made: by the time it runs, a session may have been closed. From then on it
is under way, so that the next may be made, with truncations, before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from time import monotonic

import torch

from cloud_server.cache.moving import Key, Move, kept
from cloud_server.cache.span import PagedSpan
from cloud_server.engine.entries import SessionState
from cloud_server.engine.session import Answered, Stretch
from cloud_server.engine.sessions import Sessions
from cloud_server.engine.shares import victim
from cloud_server.engine.upkeep import Moved
from cloud_server.metrics import CloudMetrics
from cloud_server.schedule.budget import StepPace
from cloud_server.schedule.plan import Plan, Portion, Truncation
from cloud_server.stages.layer_step import Ran
from service.sparing_log import SparingLog
from wire.errors import Code, SessionFailed

often = SparingLog()


@dataclass
class StepsDone:
    """All steps so far: how many, the rows in them, and the seconds that they took."""

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """One more."""
        self.steps += 1
        self.rows += rows
        self.seconds += seconds


@dataclass(frozen=True)
class Step:
    """What a runner is given: first the moves, then the rows of all stretches."""

    stretches: Sequence[Stretch]
    hidden: Sequence[torch.Tensor]
    moved: Sequence[Moved]
    moves: Sequence[Move]

    @property
    def spans(self) -> list[PagedSpan]:
        """Where the rows of each stretch are stored."""
        return [stretch.span for stretch in self.stretches]


class Steps:
    """Makes steps of sessions' rows and hands out what they give.

    Args:
        pace: learns from every step.

    Attributes:
        done: what there was so far.
    """

    def __init__(self, sessions: Sessions, pace: StepPace[Key], metrics: CloudMetrics) -> None:
        self._sessions = sessions
        self._pace = pace
        self._metrics = metrics
        self.done = StepsDone()

    def make(self, plan: Plan[Key]) -> Step | None:
        """Return the step of a plan, with pages for all of its rows; None where no session has any."""
        for each in plan.truncations:
            self._go_back(each)
        stretches = [
            self._stretch(key, list(of_key)) for key, of_key in groupby(plan.portions, lambda portion: portion.key)
        ]
        # A session that got its pages may have been ended for the pages of one behind it.
        there = [stretch for stretch in stretches if stretch is not None and self._sessions.holds(stretch.session)]
        if not there:
            return None
        hidden = []
        for stretch in there:
            stretch.session.under_way.append(stretch)
            for portion in stretch.portions:
                hidden.append(stretch.session.waiting[portion.sequence].part(portion.begin, portion.rows))
        return Step(there, hidden, *self._sessions.upkeep.take())

    def settle(self, step: Step, ran: Ran, began: float) -> None:
        """Hand out what a step, begun at ``began``, has made of the rows in it."""
        now, rows_in_all, begin = monotonic(), ran.outputs.shape[0], 0
        self._pace.load.observe(rows_in_all, ran.seconds)
        self._metrics.step_seconds.observe(ran.seconds)
        self._metrics.step_seconds_squares.inc(ran.seconds**2)
        self._metrics.step_rows.observe(rows_in_all)
        self.done.add(rows_in_all, ran.seconds)
        for stretch, finite in zip(step.stretches, ran.finite, strict=True):
            session, rows = stretch.session, stretch.span.rows
            outputs = ran.outputs[begin : begin + rows]
            begin += rows
            if not self._sessions.holds(session):
                continue  # Closed, ended or resumed elsewhere while the step ran.
            if not finite:
                self._sessions.upkeep.unclean.mark(self._sessions.ledger.pages.table(session.key), stretch.span.start)
                failure = SessionFailed(Code.NOT_FINITE, "these rows hold or became NaN or infinity")
                self._sessions.end(session.key, failure)
                continue
            session.done = max(session.done, stretch.end)
            self._answer(stretch, outputs, ran, began, now)

    def fail(self, step: Step) -> None:
        """End the sessions that have rows or moves in a step which could not be computed, and those that have by now a
        page that it was to clear: nobody knows whether it is clear, and it must not be cleared under them."""
        sessions = self._sessions
        for session in [*(stretch.session for stretch in step.stretches), *(each.session for each in step.moved)]:
            if sessions.holds(session):
                sessions.end(session.key, SessionFailed(Code.INTERNAL, "the step that held this session failed"))
        unclean, pages = sessions.upkeep.unclean, sessions.ledger.pages
        cleared = unclean.cleared(step.moves)
        for key in list(sessions.ledger.entries) if cleared else ():
            if key in sessions and not cleared.isdisjoint(pages.table(key)):
                sessions.end(key, SessionFailed(Code.INTERNAL, "a step that was to clear this session's pages failed"))
        unclean.failed(step.moves)

    def _go_back(self, back: Truncation[Key]) -> None:
        """Take a session back, and its kept nodes to where their positions are now, in the pages it has now."""
        session, pages = self._sessions[back.key], self._sessions.ledger.pages
        table = pages.table(back.key)
        self._sessions.upkeep.move(session, kept(table, pages.page_positions, back.position, back.nodes))
        session.length = back.position + len(back.nodes)
        session.done = min(session.done, back.position)
        for stretch in session.under_way:
            stretch.end = min(stretch.end, back.position)
        self._sessions.upkeep.leave(session, table, session.length)
        pages.truncate(back.key, session.length)

    def _stretch(self, key: Key, portions: list[Portion[Key]]) -> Stretch | None:
        """Return a session's rows with pages for them; None when it has ended to make room for others, or does now."""
        if key not in self._sessions:
            return None
        session, rows = self._sessions[key], sum(portion.rows for portion in portions)
        start, end = session.length, session.length + rows
        if not self._make_room(key, end):
            return None
        first = session.waiting[portions[0].sequence]
        if not first.nodes:  # Nodes count once they are kept.
            session.length = end
        pages = self._sessions.ledger.pages
        # A copy: while the step is under way, the table may grow, shrink or go.
        table = tuple(pages.table(key)[: pages.needed(end)])
        return Stretch(session, portions, PagedSpan(table, start, rows, first.branching), session.length)

    def _make_room(self, key: Key, positions: int) -> bool:
        """Give a session pages, and end others where there are too few. Returns False when it was ended itself."""
        ledger = self._sessions.ledger
        while not ledger.pages.extend(key, positions):
            ended, state = victim(ledger.entries, ledger.pages) or (key, SessionState.OPEN)
            if state is SessionState.OPEN:
                self._metrics.preemptions.inc()
                request_id = self._sessions[ended].request_id
                often.info("session preempted", connection=ended[0], session=ended[1], request_id=request_id)
                failure = SessionFailed(Code.PREEMPTED, "its pages went to an older session", retry_after_s=0.5)
            else:
                failure = SessionFailed(Code.EVICTED, "its pages were needed")
            self._sessions.end(ended, failure)
            if ended == key:
                return False
        return True

    def _answer(self, stretch: Stretch, outputs: torch.Tensor, ran: Ran, began: float, now: float) -> None:
        """Hand out what a step has made of a session's rows, to each of the forwards they come from."""
        session, ledger, begin = stretch.session, self._sessions.ledger, 0
        for portion in stretch.portions:
            forward = session.waiting[portion.sequence]
            forward.take(outputs[begin : begin + portion.rows], ran.seconds)
            begin += portion.rows
            if not portion.last:
                continue
            del session.waiting[portion.sequence]
            ledger.answered(session.key, forward.rows, now)
            if forward.want and not ledger.entries[session.key].prompt:  # Behind a chunk nobody decodes yet.
                self._pace.gathering.answered(session.key, now, more=bool(session.waiting))
            queue_s = began - forward.arrived
            self._metrics.queue_seconds.observe(queue_s)
            took = ran.seconds, ran.outputs.shape[0], forward.steps, forward.steps_s
            session.deliver(Answered(portion.sequence, forward.wanted(), queue_s, *took))
            if not self._sessions.holds(session):
                return  # Its answers are not read, so it has been closed.
