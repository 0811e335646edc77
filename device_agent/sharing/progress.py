"""What a request has come to, as whoever observes this agent is told. On the event loop; numbers only."""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple

from wire.observed_messages import MAX_MARKS, Mark, ObservedRequest, Stage


class _Ended(NamedTuple):
    """A chunk or a round that ended ``at`` this moment of ``perf_counter``."""

    request: int
    kind: Literal["chunk", "round"]
    at: float
    took_s: float
    rows: int
    accepted: int


class Marks:
    """Chunks and rounds that are over and not told yet, of all requests; none are kept while nobody observes.

    Attributes:
        wanted: somebody does.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._ended: deque[_Ended] = deque(maxlen=MAX_MARKS)
        self._lost = 0

    def add(self, request: int, kind: Literal["chunk", "round"], took_s: float, rows: int, accepted: int = 0) -> None:
        """One is over now; the oldest is lost where there is no more room."""
        if self.wanted:
            self._lost += len(self._ended) == MAX_MARKS
            self._ended.append(_Ended(request, kind, perf_counter(), took_s, rows, accepted))

    def take(self) -> tuple[list[Mark], int]:
        """Return those that are not told yet, the oldest first, and how many were lost; both are forgotten here."""
        now, ended, lost = perf_counter(), list(self._ended), self._lost
        self._ended.clear()
        self._lost = 0
        marks = [
            Mark(each.request, each.kind, _us(now - each.at), _us(each.took_s), each.rows, each.accepted)
            for each in ended
        ]
        return marks, lost


class Progress:
    """Of one request, all its choices together.

    Args:
        marks: where what is over is noted.
        number: what the gateway knows the request by.

    Attributes:
        stage: what is being done for it.
    """

    def __init__(self, marks: Marks, number: int = 0) -> None:
        self.stage: Stage = "reads"
        self._marks = marks
        self._number = number
        self._prompt = self._cached = self._sent = self._answered = 0
        self._tokens = self._rounds = self._drafted = self._accepted = self._restored = 0

    def prefills(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Its prompt's rows are computed, but for those that an earlier turn has left."""
        self.stage, self._prompt, self._cached = "prefills", prompt_tokens, cached_tokens

    def chunk(self, rows: int, answer: asyncio.Future[Any]) -> None:
        """Rows of its prompt are on their way to the submodels behind the first, until there is an ``answer``."""
        began = perf_counter()
        self._sent += rows

        def answered(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._answered += rows
                self._marks.add(self._number, "chunk", perf_counter() - began, rows)

        answer.add_done_callback(answered)

    def verdict(self, tokens: int, rows: int, took_s: float | None) -> None:
        """So many tokens were chosen: by a round of so many rows, the draft's and one more, that was answered
        ``took_s`` after it was sent; None: by the prompt's end."""
        self._tokens += tokens
        if took_s is not None:
            self._rounds += 1
            self._drafted += rows - 1
            self._accepted += tokens - 1
            self._marks.add(self._number, "round", took_s, rows, tokens - 1)

    def restored(self) -> None:
        """Its rows go to a cloud server again, that has lost them or is another one."""
        self._restored += 1

    def told(self) -> ObservedRequest:
        """Return what there is to say."""
        return ObservedRequest(
            self._number,
            self.stage,
            self._prompt,
            self._cached,
            self._sent,
            self._answered,
            self._tokens,
            self._rounds,
            self._drafted,
            self._accepted,
            self._restored,
        )


def _us(seconds: float) -> int:
    return max(0, int(seconds * 1e6))


NOBODYS: Final = Progress(Marks())
"""Of what is computed for no request."""
