"""Spans that are sent: OpenTelemetry's, by OTLP over HTTP, with its standard variables (headers, certificates, sampler,
names). Needs the extra ``traces``.

Whoever ends a span puts it into a bounded queue and waits for nothing. A thread of its own encodes a few at a time and
sends them; what finds no room there, or cannot be sent, is dropped and counted.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan

from service.errands import traceparent_of
from service.sparing_log import SparingLog
from service.traces import Facts, Span, Traces
from service.version import VERSION

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_WAITING: Final = 2048
"""Spans that wait to be sent; more are dropped. Each takes about two kilobytes."""

AT_ONCE: Final = 32
"""Spans of one message: encoding them holds the interpreter for a millisecond or two, and nobody else computes then."""

EVERY_S: Final = 1.0
"""How long a span waits for others to go with it."""

CLOSE_WITHIN_S: Final = 0.5
"""What sending the last spans may take as the process ends, where sending works."""

MAX_WHY: Final = 200

NAMES: Final = {
    "model": "gen_ai.response.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "route": "http.route",
    "status": "http.response.status_code",
    "code": "error.type",
}
"""What facts are called that OpenTelemetry has names for; all others begin with ``trilby.``."""


def attributes_of(facts: Facts) -> dict[str, Any]:
    """Return facts as attributes."""
    return {NAMES.get(name, f"trilby.{name}"): value for name, value in facts.items()}


class SentSpan(Span):
    """A span that is sent once it has ended, where its trace is one that is kept."""

    def __init__(self, tracer: Tracer, name: str, parent: Context, kind: SpanKind, began_ns: int) -> None:
        self._tracer, self._began_ns = tracer, began_ns
        self._span: OtelSpan = tracer.start_span(name, parent, kind, start_time=began_ns, record_exception=False)
        context = self._span.get_span_context()
        super().__init__(f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}")
        self.trace_id = f"{context.trace_id:032x}" if context.trace_flags.sampled else ""

    def child(self, name: str, *, from_start: bool = False) -> Span:
        """See ``Span``, here and below."""
        began_ns = self._began_ns if from_start else time.time_ns()
        return SentSpan(self._tracer, name, set_span_in_context(self._span, Context()), SpanKind.INTERNAL, began_ns)

    def note(self, **facts: Unpack[Facts]) -> None:
        self._span.set_attributes(attributes_of(facts))

    def event(self, name: str, **facts: Unpack[Facts]) -> None:
        self._span.add_event(name, attributes_of(facts))

    def fail(self, code: str) -> None:
        self._span.set_attributes(attributes_of({"code": code}))
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        if self._span.is_recording():  # OpenTelemetry warns of a second end.
            self._span.end()


class SentTraces(Traces):
    """The spans of one process.

    Args:
        process: which one, ``gateway`` say.
        endpoint: where they are sent, the whole URL.
    """

    def __init__(self, process: str, endpoint: str) -> None:
        named = {} if os.environ.get(OTEL_SERVICE_NAME) else {SERVICE_NAME: f"trilby-{process}"}
        resource = Resource.create({**named, SERVICE_VERSION: VERSION})
        self._queue = SpanQueue(OTLPSpanExporter(endpoint), endpoint)
        # Nothing is made the global provider: what libraries tell of themselves is not meant.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._queue)
        self._tracer = provider.get_tracer(f"trilby.{process}", VERSION)

    @property
    def dropped(self) -> int:
        """See ``Traces``, here and below."""
        return self._queue.dropped

    def span(self, name: str, traceparent: str = "", ago_s: float = 0.0) -> Span:
        began_ns = time.time_ns() - int(ago_s * 1e9)
        return SentSpan(self._tracer, name, _remote(traceparent), SpanKind.SERVER, began_ns)

    def close(self) -> None:
        self._queue.shutdown()


def _remote(traceparent: str) -> Context:
    """What a span begins in that continues another process' trace; nothing where that is none."""
    parts = traceparent_of([traceparent]).split("-")
    if len(parts) != 4:
        return Context()
    trace, span, flags = (int(each, 16) for each in parts[1:])
    return set_span_in_context(NonRecordingSpan(SpanContext(trace, span, True, TraceFlags(flags))), Context())


class SpanQueue(SpanProcessor):
    """Spans that have ended, until a thread has sent them.

    Attributes:
        dropped: those that found no room here, or that the exporter could not send.
    """

    def __init__(self, exporter: SpanExporter, where: str) -> None:
        self.dropped = 0
        self._exporter, self._where = exporter, where
        self._said = _take_words()
        self._waiting: deque[ReadableSpan] = deque()
        self._wake = threading.Event()
        self._closing = self._failing = False
        self._log = SparingLog()
        run = contextvars.copy_context().run  # Which process it is stands there, for the log.
        self._thread = threading.Thread(target=run, args=(self._send_all,), name="spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._closing or len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._waiting.append(span)
        if len(self._waiting) == AT_ONCE:
            self._wake.set()

    def shutdown(self) -> None:
        """Send what waits, for no longer than ``CLOSE_WITHIN_S``, and not at all where sending does not work."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        if not self._failing:
            self._thread.join(CLOSE_WITHIN_S)
        self._waiting.clear()
        self._exporter.shutdown()

    def _send_all(self) -> None:
        while not self._closing:
            self._wake.wait(EVERY_S)
            self._wake.clear()
            while spans := self._taken():
                self._send(spans)

    def _taken(self) -> list[ReadableSpan]:
        spans: list[ReadableSpan] = []
        with suppress(IndexError):
            while len(spans) < AT_ONCE:
                spans.append(self._waiting.popleft())
        return spans

    def _send(self, spans: list[ReadableSpan]) -> None:
        try:
            sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # Whatever it is, traces are no reason for anything else to fail.
            sent, self._said.last = False, type(error).__name__
        if not sent:
            self.dropped += len(spans)
        if sent and self._failing:
            self._log.info("traces are sent again", where=self._where, lost=self.dropped)
        elif not (sent or self._failing or self._closing):
            self._log.warning("traces cannot be sent: going on without", where=self._where, why=self._said.last)
        self._failing = not sent


class _Words(logging.Handler):
    """What OpenTelemetry says goes into no log: of a collector that is gone it says something every second."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, for who asks why."""
        self.last = record.getMessage()[:MAX_WHY]


def _take_words() -> _Words:
    told, words = logging.getLogger("opentelemetry"), _Words()
    told.handlers[:], told.propagate = [words], False
    return words
