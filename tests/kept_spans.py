"""Traces for tests that are kept in memory, where how they are sent is nothing to the test."""

from __future__ import annotations

from typing import Any

from service.traces import Span, Traces


class Kept(Span):
    """A span that remembers what is said of it. Its ``traceparent`` is its own, ``parent`` what it was begun in."""

    def __init__(self, traces: KeptTraces, name: str, parent: str) -> None:
        trace = parent.split("-")[1] if parent else "9" * 32
        super().__init__(f"00-{trace}-{len(traces.spans) + 1:016x}-01")
        self.trace_id = trace
        self.name, self.parent = name, parent
        self.facts: dict[str, Any] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.code = ""
        self.ended = 0
        self._traces = traces
        traces.spans.append(self)

    def child(self, name: str, *, from_start: bool = False) -> Span:
        return Kept(self._traces, name, self.traceparent)

    def note(self, **facts: Any) -> None:
        self.facts |= facts

    def event(self, name: str, **facts: Any) -> None:
        self.events.append((name, facts))

    def fail(self, code: str) -> None:
        self.code = code

    def end(self) -> None:
        self.ended += 1


class KeptTraces(Traces):
    """Has all spans, in the order in which they began."""

    def __init__(self) -> None:
        self.spans: list[Kept] = []

    def span(self, name: str, traceparent: str = "", ago_s: float = 0.0) -> Span:
        return Kept(self, name, traceparent)

    def named(self, name: str) -> list[Kept]:
        """Those of this name."""
        return [each for each in self.spans if each.name == name]
