"""What the gateway counts. The words after ``trilby_`` are those other engines use, where they mean the same.

Labels are few and bounded: models that agents serve, codes of errors, reasons to finish; never a client or an agent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.errors import RequestError
from gateway.incidents import Incidents
from gateway.traffic import Traffic
from service.lost_metrics import LostLines, LostSpans
from service.sparing_log import SparingLog
from service.traces import NO_TRACES, Traces

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
TOKENS: Final = (*(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000),)

MAX_PATH: Final = 128
"""Characters of a path in a log line."""


class GatewayMetrics:
    """All counters of one gateway, in a registry of its own.

    Attributes:
        refusals: the log of what is counted in ``failed`` without having been a request.
        incidents: what went wrong lately, for people.
        tokens: generated so far.
        from_clients, from_gateways: bytes of what clients, and other gateways for theirs, have asked and were answered;
            what pages are told is none of it.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, traces: Traces = NO_TRACES) -> None:
        self.registry = CollectorRegistry()
        self.refusals = SparingLog()
        self.incidents = Incidents()
        self.tokens = 0
        self.from_clients, self.from_gateways = Traffic(), Traffic()
        own, model = self.registry, ["model_name"]

        def seconds(name: str, about: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"trilby_{name}_seconds", about, model, buckets=buckets, registry=own)

        def tokens(name: str, about: str) -> Histogram:
            return Histogram(f"trilby_request_{name}_tokens", about, model, buckets=TOKENS, registry=own)

        def count(name: str, about: str, labels: Sequence[str] = model) -> Counter:
            return Counter(f"trilby_{name}_total", about, labels, registry=own)

        self.running = Gauge("trilby_num_requests_running", "Requests that agents work on", registry=own)
        self.waiting = Gauge("trilby_num_requests_waiting", "Requests that wait for a free agent", registry=own)
        self.agents = Gauge("trilby_num_agents", "Device agents connected", registry=own)
        self.first_token = seconds("time_to_first_token", "From the request to its first token", FIRST_TOKEN_S)
        between = "Between deltas of a choice, by the later one's tokens"
        self.between_tokens = seconds("inter_token_latency", between, BETWEEN_TOKENS_S)
        each = "Of a choice, the time behind its first delta by the tokens there"
        self.each_token = seconds("request_time_per_output_token", each, BETWEEN_TOKENS_S)
        self.request_s = seconds("e2e_request_latency", "From the request to the last token", REQUEST_S)
        self.queue_s = seconds("request_queue_time", "From the request to the first acceptance", REQUEST_S)
        self.prefill_s = seconds("request_prefill_time", "From the first acceptance to the first token", REQUEST_S)
        self.decode_s = seconds("request_decode_time", "From the first token to the last", REQUEST_S)
        self.inference_s = seconds("request_inference_time", "From the first acceptance to the last token", REQUEST_S)
        self.prompt_size = tokens("prompt", "Tokens of a prompt")
        self.generation_size = tokens("generation", "Tokens of a choice")
        self.prompt_tokens = count("prompt_tokens", "Prompt tokens")
        self.cached_tokens = count("prompt_tokens_cached", "Prompt tokens that were left from an earlier turn")
        self.prefix_queries = count("prefix_cache_queries", "Tokens of prompts that were answered")
        self.prefix_hits = count("prefix_cache_hits", "Those of them that were left from an earlier turn")
        self.generation_tokens = count("generation_tokens", "Tokens generated")
        self.drafts = count("spec_decode_num_drafts", "Drafts made for answers that were completed")
        drafted = "Tokens drafted for answers that were completed"
        self.draft_tokens = count("spec_decode_num_draft_tokens", drafted)
        self.accepted_tokens = count("spec_decode_num_accepted_tokens", "Drafted tokens that are in those answers")
        finished = "Choices finished, and requests aborted by their client"
        self.succeeded = count("request_success", finished, [*model, "finished_reason"])
        self.failed = count("request_failures", "Requests answered with an error, by code", ["code"])
        about = "Spent on what open pages are told"
        self.page_s = Counter("trilby_page_seconds_total", about, registry=own)
        own.register(LostLines("trilby_gateway_log_lines_dropped_total"))
        own.register(LostSpans("trilby_gateway_spans_dropped_total", traces))

    def refused(self, request_id: str, path: str, error: RequestError, tenant: str) -> None:
        """Count and log what never became a request; of many alike, which any stranger can cause, the log says how
        many. Neither the error's message nor its ``param`` is told: they may quote what the client sent.

        tenant: whose it was, who is told that too."""
        code = error.code or "invalid_value"
        self.failed.labels(code).inc()
        self.incidents.note(time.time(), code, "", f"refused with {error.status}", tenant)
        self.refusals.info(
            "refused", code, request_id=request_id, path=path[:MAX_PATH], status=error.status, outcome=code
        )

    def text(self) -> bytes:
        """Return all values in Prometheus' text form."""
        return generate_latest(self.registry)
