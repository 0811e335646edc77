"""The metric of log lines that nobody took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from service.logs import dropped_lines

_ABOUT: Final = "Log lines dropped, since nobody read them or they could not be written"


class DroppedLines(Collector):
    """A counter called ``name``, read when asked."""

    def __init__(self, name: str) -> None:
        self._name = name

    def collect(self) -> Iterator[Metric]:
        """Its value now."""
        yield CounterMetricFamily(self._name, _ABOUT, value=dropped_lines())
