"""The cloud server's metrics. Words after the prefix are those other engines use where they mean the same.

Labels are few and fixed: never a device, session or user.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class CloudMetrics:
    """What the cloud server counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = Gauge("trilby_cloud_num_sessions", "Sessions open", registry=self.registry)
        self.devices = Gauge("trilby_cloud_num_devices", "Devices connected", registry=self.registry)
        self.waiting_rows = Gauge("trilby_cloud_num_rows_waiting", "Rows waiting for a step", registry=self.registry)
        self.kv_usage = Gauge(
            "trilby_cloud_kv_cache_usage_perc", "Positions reserved of all there are, 0 to 1", registry=self.registry
        )
        self.step_seconds = Histogram(
            "trilby_cloud_step_seconds", "Time of one batched step", buckets=_SECONDS, registry=self.registry
        )
        self.step_rows = Histogram(
            "trilby_cloud_iteration_tokens_total", "Rows in one step", buckets=_ROWS, registry=self.registry
        )
        self.refused = Counter(
            "trilby_cloud_refusals_total", "Sessions and connections refused or ended", ["code"], registry=self.registry
        )
        self.received_bytes = Counter(
            "trilby_cloud_received_bytes_total", "Frame bytes received", registry=self.registry
        )
        self.sent_bytes = Counter("trilby_cloud_sent_bytes_total", "Frame bytes sent", registry=self.registry)

    def text(self) -> bytes:
        """All values in Prometheus text form."""
        return generate_latest(self.registry)
