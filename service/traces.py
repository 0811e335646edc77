"""Traces: what a process spends on a request, as spans that a collector gets where one is named.

    span = traces.span("answer", request.traceparent)
    with span.phases() as phases:
        phases.begin("queue")
        …
        phases.begin("prefill")
    span.note(prompt_tokens=5)
    span.end()

``Span`` and ``Traces`` as they are here keep nothing, and cost nothing: what was given of another's trace goes on to
whoever works for it. ``span_export.py`` has those that are sent, and alone imports OpenTelemetry.

What may be said of a span is ``Facts``: names and numbers. Never a text, a token id, a sampling setting, or the message
of an error, which may quote what a client sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Unpack

OWN_TRACES: Final[Any] = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""For FastAPI, whose own telemetry tells paths, queries and the messages of errors."""


class Facts(TypedDict, total=False):
    """All that spans and their events say. Texts are our own words, ids as ``errands.py`` has them, and names that an
    operator has given."""

    request_id: str
    endpoint: str
    route: str
    model: str
    outcome: str
    code: str
    how: str
    mode: str
    status: int
    streamed: bool
    choice: int
    choices: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    rounds: int
    drafted: int
    accepted: int
    heads_pruned: int
    forwards: int
    rows: int
    steps: int
    members: int
    member_step_ms: Sequence[float]
    first_token_s: float
    device_s: float
    link_s: float
    queue_s: float
    step_s: float


class Span:
    """A stretch of time in one process, within a trace. This one is not kept.

    Attributes:
        traceparent: what names it to those who work within it, in other processes too; empty: there is no trace.
        trace_id: of its trace, for logs; empty where it is not kept.
    """

    trace_id = ""

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def child(self, name: str, *, from_start: bool = False) -> Span:
        """Return a span within this one, begun now, or where this one began."""
        return self

    def phases(self) -> Phases:
        """Return its children that follow one after the other."""
        return Phases(self)

    def note(self, **facts: Unpack[Facts]) -> None:
        """Say something of all of it."""

    def event(self, name: str, **facts: Unpack[Facts]) -> None:
        """Say that something happened now."""

    def fail(self, code: str) -> None:
        """It comes to a bad end, of this kind."""

    def end(self) -> None:
        """It is over. Further calls change nothing."""


class Traces:
    """Where the spans of a process begin; of these none is kept."""

    @property
    def dropped(self) -> int:
        """Spans that were to be sent and are lost."""
        return 0

    def span(self, name: str, traceparent: str = "", ago_s: float = 0.0) -> Span:
        """Return a span within another process' or, without a ``traceparent``, the first one of a new trace; begun
        ``ago_s`` seconds ago."""
        return Span(traceparent)

    def close(self) -> None:
        """Send what there is, if that can be done at once, and nothing from then on."""


UNTRACED: Final = Span()
NO_TRACES: Final = Traces()


class Phases:
    """Children of a span, each of which ends where the next begins; a context manager, which ends the last."""

    def __init__(self, of: Span) -> None:
        self._of = of
        self._now: Span = UNTRACED

    def begin(self, name: str, **facts: Unpack[Facts]) -> None:
        """What was before is over, and this begins."""
        self._now.end()
        self._now = self._of.child(name)
        self._now.note(**facts)

    def note(self, **facts: Unpack[Facts]) -> None:
        """Say something of the present one."""
        self._now.note(**facts)

    def __enter__(self) -> Phases:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._now.fail("cancelled" if issubclass(kind, asyncio.CancelledError) else "failed")
        self._now.end()
