"""The metrics of what a process wanted to say and nobody took: log lines, and spans of traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from service.logs import dropped_lines
from service.traces import Traces

_LINES: Final = "Log lines dropped, since nobody read them or they could not be written"
_SPANS: Final = "Spans of traces dropped, since they could not be sent"


class LostLines(Collector):
    """A counter called ``name`` of log lines, read when asked."""

    def __init__(self, name: str) -> None:
        self._name = name

    def collect(self) -> Iterator[Metric]:
        """Its value now."""
        yield CounterMetricFamily(self._name, _LINES, value=dropped_lines())


class LostSpans(Collector):
    """A counter called ``name`` of spans, read when asked."""

    def __init__(self, name: str, traces: Traces) -> None:
        self._name = name
        self._traces = traces

    def collect(self) -> Iterator[Metric]:
        """Its value now."""
        yield CounterMetricFamily(self._name, _SPANS, value=self._traces.dropped)
