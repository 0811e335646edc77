"""What is refused before it becomes an ``Ask``: counted and logged once, like the end of every other request."""

from __future__ import annotations

from typing import Final

import structlog

from gateway.errors import RequestError
from gateway.metrics import GatewayMetrics

MAX_PATH: Final = 128
"""Characters of a path in a log line."""

log = structlog.get_logger()


def note_refusal(metrics: GatewayMetrics, request_id: str, path: str, error: RequestError) -> None:
    """Count and log an error; neither its message nor its ``param``, which may quote what the client sent."""
    code = error.code or "invalid_value"
    metrics.failed.labels(code).inc()
    log.info("refused", request_id=request_id, path=path[:MAX_PATH], status=error.status, outcome=code)
