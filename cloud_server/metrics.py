"""The cloud server's metrics. Words after the prefix are those other engines use where they mean the same.

Labels are few and fixed: never a device, session or user.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from service.lost_metrics import LostLines, LostSpans
from service.traces import NO_TRACES, Traces

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class CloudMetrics:
    """What the cloud server counts."""

    def __init__(self, traces: Traces = NO_TRACES) -> None:
        self.registry = CollectorRegistry()
        self.running = self._gauge("num_requests_running", "Sessions open, those kept for a next turn left out")
        self.waiting = self._gauge("num_requests_waiting", "Sessions with rows that wait for a step")
        self.parked = self._gauge("num_sessions_parked", "Sessions kept for a next turn or a reconnect")
        self.devices = self._gauge("num_devices", "Devices connected")
        self.waiting_rows = self._gauge("num_rows_waiting", "Rows waiting for a step")
        self.kv_usage = self._gauge("kv_cache_usage_perc", "Pages of open sessions, of all there are, 0 to 1")
        self.step_seconds = self._histogram("step_seconds", "Time of one batched step", _SECONDS)
        self.step_seconds_squares = self._counter(
            "step_seconds_squares_total", "Squares of the times of all steps, for their standard deviation"
        )
        self.step_rows = self._histogram("iteration_tokens_total", "Rows in one step", _ROWS)
        self.queue_seconds = self._histogram("request_queue_time_seconds", "Wait of a forward for its step", _SECONDS)
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From a prompt's first row to its answer, as devices see it", _SECONDS
        )
        self.tbt = self._histogram("inter_token_latency_seconds", "Between answers, as devices see it", _SECONDS)
        self.preemptions = self._counter("num_preemptions_total", "Sessions ended because pages ran out")
        self.evictions = self._counter("num_evictions_total", "Kept or idle sessions given up")
        self.replays = self._counter("num_replays_total", "Sessions that devices began again from their own rows")
        self.resumes = self._counter("num_resumes_total", "Sessions that went on after a reconnect")
        self.forks = self._counter("num_forks_total", "Sessions that began with the rows of another")
        self.replayed_rows = self._counter("replayed_rows_total", "Rows announced by replays")
        self.prefix_rows = self._counter("prefix_cache_hits_total", "Positions a next turn found in its kept session")
        self.stage_restarts = self._counter("stage_restarts_total", "Times the pipeline was started again")
        self.refused = Counter(
            "trilby_cloud_refusals_total", "Sessions and connections refused or ended", ["code"], registry=self.registry
        )
        self.received_bytes = self._counter("received_bytes_total", "Frame bytes received")
        self.sent_bytes = self._counter("sent_bytes_total", "Frame bytes sent")
        self.registry.register(LostLines("trilby_cloud_log_lines_dropped_total"))
        self.registry.register(LostSpans("trilby_cloud_spans_dropped_total", traces))

    def text(self) -> bytes:
        """All values in Prometheus text form."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"trilby_cloud_{name}", meaning, registry=self.registry)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"trilby_cloud_{name}", meaning, registry=self.registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"trilby_cloud_{name}", meaning, buckets=buckets, registry=self.registry)
