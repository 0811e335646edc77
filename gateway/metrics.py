"""What the gateway counts. The words after ``trilby_`` are those other engines use, where they mean the same.

Labels are few and bounded: models that agents serve, codes of errors, reasons to finish; never a client or an agent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.errors import RequestError
from service.log_metric import DroppedLines
from service.sparing_log import SparingLog

FIRST_TOKEN_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)

MAX_PATH: Final = 128
"""Characters of a path in a log line."""


class GatewayMetrics:
    """All counters of one gateway, in a registry of its own.

    Attributes:
        refusals: the log of what is counted in ``failed`` without having been a request.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.refusals = SparingLog()
        own, model = self.registry, ["model_name"]

        def seconds(name: str, about: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"trilby_{name}_seconds", about, model, buckets=buckets, registry=own)

        def count(name: str, about: str, labels: Sequence[str] = model) -> Counter:
            return Counter(f"trilby_{name}_total", about, labels, registry=own)

        self.running = Gauge("trilby_num_requests_running", "Requests that agents work on", registry=own)
        self.waiting = Gauge("trilby_num_requests_waiting", "Requests that wait for a free agent", registry=own)
        self.agents = Gauge("trilby_num_agents", "Device agents connected", registry=own)
        self.first_token = seconds("time_to_first_token", "From the request to its first token", FIRST_TOKEN_S)
        between = "Between deltas of a choice, by the later one's tokens"
        self.between_tokens = seconds("inter_token_latency", between, BETWEEN_TOKENS_S)
        self.request_s = seconds("e2e_request_latency", "From the request to the last token", REQUEST_S)
        self.queue_s = seconds("request_queue_time", "From the request to the first acceptance", REQUEST_S)
        self.prompt_tokens = count("prompt_tokens", "Prompt tokens")
        self.generation_tokens = count("generation_tokens", "Tokens generated")
        drafted = "Tokens drafted for answers that were completed"
        self.draft_tokens = count("spec_decode_num_draft_tokens", drafted)
        self.accepted_tokens = count("spec_decode_num_accepted_tokens", "Drafted tokens that are in those answers")
        finished = "Choices finished, and requests aborted by their client"
        self.succeeded = count("request_success", finished, [*model, "finished_reason"])
        self.failed = count("request_failures", "Requests answered with an error, by code", ["code"])
        own.register(DroppedLines("trilby_gateway_log_lines_dropped_total"))

    def refused(self, request_id: str, path: str, error: RequestError) -> None:
        """Count and log what never became a request; of many alike, which any stranger can cause, the log says how
        many. Neither the error's message nor its ``param`` is told: they may quote what the client sent."""
        code = error.code or "invalid_value"
        self.failed.labels(code).inc()
        self.refusals.info(
            "refused", code, request_id=request_id, path=path[:MAX_PATH], status=error.status, outcome=code
        )

    def text(self) -> bytes:
        """Return all values in Prometheus' text form."""
        return generate_latest(self.registry)


class RequestMeter:
    """The clock of one request."""

    def __init__(self, metrics: GatewayMetrics, began: float) -> None:
        self._metrics = metrics
        self._began = began
        self._last: dict[int, float] = {}
        self._model = ""

    def accepted(self, model: str, prompt_tokens: int) -> None:
        """An agent has taken the request, or one more of its prompts."""
        metrics = self._metrics
        if not self._model:  # Later prompts wait for earlier ones, which is no time in the queue.
            metrics.queue_s.labels(model).observe(time.perf_counter() - self._began)
        self._model = model
        self._first_token = metrics.first_token.labels(model)
        self._between = metrics.between_tokens.labels(model)
        self._generated = metrics.generation_tokens.labels(model)
        metrics.prompt_tokens.labels(model).inc(prompt_tokens)

    def delta(self, index: int, tokens: int) -> None:
        """New tokens of a choice have arrived."""
        if not tokens:
            return
        now = time.perf_counter()
        last = self._last.get(index)
        if last is not None:
            self._between.observe((now - last) / tokens)
        elif not self._last:
            self._first_token.observe(now - self._began)
        self._last[index] = now
        self._generated.inc(tokens)

    def drafted(self, proposed: int, accepted: int) -> None:
        """The agent is done with a prompt, for which so many tokens were drafted and so many of them accepted."""
        if proposed:
            self._metrics.draft_tokens.labels(self._model).inc(proposed)
            self._metrics.accepted_tokens.labels(self._model).inc(accepted)

    def finished(self, reason: str) -> None:
        """A choice is complete: ``stop`` or ``length``; or the client went away: ``abort``."""
        self._metrics.succeeded.labels(self._model, reason).inc()

    def done(self) -> None:
        """The whole answer is there."""
        self._metrics.request_s.labels(self._model).observe(time.perf_counter() - self._began)

    def failed(self, code: str | None) -> None:
        """The request ended with an error."""
        self._metrics.failed.labels(code or "invalid_value").inc()
