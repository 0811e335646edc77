"""A collector of traces for tests: a real HTTP server that takes OTLP, keeps every byte, and decodes what came.

with Collector() as collector:
    ...  # export to collector.url
    spans = collector.wait_for(lambda spans: len(spans) == 3)
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

PATH = "/v1/traces"


@dataclass(frozen=True)
class Exported:
    """One span as it came. ``parent`` is empty where it is the first of its trace."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    facts: dict[str, Any]
    events: dict[str, dict[str, Any]]
    begin_ns: int
    end_ns: int
    failed: bool


@dataclass
class Collector:
    """Listens on loopback while it is entered.

    Attributes:
        spans: all that came. bodies: the same as bytes, uncompressed.
        others: paths to which anything else was sent.
        status: what it answers with.
        delay_s: how long it takes to.
    """

    spans: list[Exported] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    status: int = 200
    delay_s: float = 0.0

    @property
    def url(self) -> str:
        """Its base address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def wait_for(self, holds: Callable[[list[Exported]], object], within_s: float = 20.0) -> list[Exported]:
        """Wait until something holds of the spans; all that are there then."""
        deadline = time.monotonic() + within_s
        while not holds(self.spans):
            assert time.monotonic() < deadline, [each.name for each in self.spans]
            time.sleep(0.02)
        return list(self.spans)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody listens at its address meanwhile."""
        self._stop()
        try:
            yield
        finally:
            self._start(self._server.server_address[1])

    def __enter__(self) -> Collector:
        self._start(0)
        return self

    def _start(self, port: int) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                time.sleep(collector.delay_s)
                if self.path != PATH:
                    collector.others.append(self.path)
                elif collector.status == 200:
                    collector.take(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(collector.status if self.path == PATH else 404)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        """Decode one message."""
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = facts_of(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans.extend(_exported(service, span) for span in scope.spans)


def _exported(service: str, span: Any) -> Exported:
    events = {each.name: facts_of(each.attributes) for each in span.events}
    begin, end, failed = span.start_time_unix_nano, span.end_time_unix_nano, span.status.code == 2
    trace, id, parent = (each.hex() for each in (span.trace_id, span.span_id, span.parent_span_id))
    return Exported(service, span.name, trace, id, parent, facts_of(span.attributes), events, begin, end, failed)


def facts_of(attributes: Any) -> dict[str, Any]:
    """Attributes as a dictionary."""
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
