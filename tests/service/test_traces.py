"""Spans reach a collector; one that is gone, slow or wrong costs nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from collector import Collector
from processes import free_port, with_paths
from structlog.testing import capture_logs

from service import span_export
from service.span_export import SentTraces
from service.trace_settings import PATH, TraceSettings, endpoint_of
from service.traces import NO_TRACES, UNTRACED, Span, Traces

ABOVE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector."""
    with Collector() as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for other spans to go with one; and nothing outside says where traces go."""
    monkeypatch.setattr(span_export, "EVERY_S", 0.01)
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def traces(collector: Collector) -> Iterator[Traces]:
    """Traces that it gets."""
    sent = SentTraces("gateway", collector.url + PATH)
    yield sent
    sent.close()


def test_a_span_and_its_phases_arrive(collector: Collector, traces: Traces) -> None:
    """With their parents, times, facts and events; under the trace that was handed in."""
    span = traces.span("answer", ABOVE, ago_s=2.0)
    span.note(request_id="r-1", prompt_tokens=5, member_step_ms=[1.5, 2.0])
    with span.phases() as phases:
        phases.begin("queue", choice=0)
        phases.begin("prefill")
        phases.note(step_s=0.25)
    span.event("first token", steps=2)
    span.end()
    span.end()
    queue, prefill, answer = collector.wait_for(lambda spans: len(spans) == 3)
    assert [each.name for each in (queue, prefill, answer)] == ["queue", "prefill", "answer"]
    assert {each.trace for each in (queue, prefill, answer)} == {"a" * 32} and span.trace_id == "a" * 32
    assert answer.parent == "b" * 16 and queue.parent == prefill.parent == answer.id
    assert span.traceparent == f"00-{answer.trace}-{answer.id}-01" and answer.service == "trilby-gateway"
    facts = {"trilby.request_id": "r-1", "gen_ai.usage.input_tokens": 5, "trilby.member_step_ms": [1.5, 2.0]}
    assert answer.facts == facts and queue.facts == {"trilby.choice": 0} and prefill.facts == {"trilby.step_s": 0.25}
    assert answer.events == {"first token": {"trilby.steps": 2}} and not answer.failed
    assert answer.end_ns - answer.begin_ns >= 2e9 and queue.end_ns <= prefill.begin_ns


def test_what_ends_badly_says_the_code_alone(collector: Collector, traces: Traces) -> None:
    """An error's message may quote what a client sent: neither a span nor its phases have it."""
    span = traces.span("answer")
    with pytest.raises(ValueError, match="Wilhelmina"), span.phases() as phases:
        phases.begin("prefill")
        raise ValueError("Wilhelmina said so")
    span.fail("overloaded")
    span.end()
    prefill, answer = collector.wait_for(lambda spans: len(spans) == 2)
    assert prefill.failed and answer.failed and answer.parent == ""
    assert prefill.facts == {"error.type": "failed"} and answer.facts == {"error.type": "overloaded"}
    assert not any(b"Wilhelmina" in body for body in collector.bodies)


@pytest.mark.parametrize("given", ["", "00-garbage", f"00-{'0' * 32}-{'b' * 16}-01"])
def test_a_malformed_context_begins_a_new_trace(collector: Collector, traces: Traces, given: str) -> None:
    """As the standard has it."""
    traces.span("answer", given).end()
    [span] = collector.wait_for(len)
    assert span.parent == "" and int(span.trace, 16)


def test_who_did_not_want_a_trace_has_none(collector: Collector, traces: Traces) -> None:
    """A context whose flag says so is passed on with it, nothing is sent, and no log names the trace."""
    span = traces.span("answer", ABOVE[:-2] + "00")
    assert span.traceparent.startswith(f"00-{'a' * 32}-") and span.traceparent.endswith("-00") and not span.trace_id
    span.child("queue").end()
    span.end()
    traces.span("other").end()
    [other] = collector.wait_for(len)
    assert other.name == "other"


def test_without_a_collector_a_context_goes_through() -> None:
    """Who keeps no traces still says to others in which one they work."""
    span = NO_TRACES.span("answer", ABOVE)
    assert span.traceparent == span.child("queue").traceparent == ABOVE and not span.trace_id
    assert UNTRACED.traceparent == "" and NO_TRACES.dropped == 0
    with span.phases() as phases:
        phases.begin("queue", choice=1)
    span.end()


def ended_in(span: Span) -> float:
    """Seconds that it takes to end a span."""
    began = time.perf_counter()
    span.end()
    return time.perf_counter() - began


def test_a_collector_that_is_gone_costs_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who ends a span waits, all that could not be sent is counted, the log has one line, and so has its return
    to work; ending the process takes no time."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.05")
    port = free_port()
    with capture_logs() as lines:
        sent = SentTraces("device", f"http://127.0.0.1:{port}{PATH}")
        slowest = 0.0
        for _ in range(300):
            slowest = max(slowest, ended_in(sent.span("answer")))
        deadline = time.monotonic() + 10.0
        while sent.dropped < 300:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.perf_counter()
        sent.close()
        took = time.perf_counter() - began
    assert slowest < 0.1 and took < 0.1
    [line] = lines
    assert line["event"].startswith("traces cannot be sent") and line["log_level"] == "warning"
    assert line["where"].endswith(f"{port}{PATH}") and line["why"]


def test_a_collector_that_comes_back_is_told_of(collector: Collector) -> None:
    """What it refuses is counted and not sent again; it is said that it works again, and how many were lost."""
    collector.status = 400
    with capture_logs() as lines:
        sent = SentTraces("cloud", collector.url + PATH)
        sent.span("session").end()
        while sent.dropped < 1:
            time.sleep(0.01)
        collector.status = 200
        sent.span("session").end()
        collector.wait_for(len)
        while len(lines) < 2:  # The answer is on its way back.
            time.sleep(0.01)
        sent.close()
    assert [each["event"] for each in lines] == ["traces cannot be sent: going on without", "traces are sent again"]
    assert lines[1]["lost"] == 1 and len(collector.spans) == 1


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    """While a collector does not answer, no more wait than there is room for; the others are dropped and counted."""
    monkeypatch.setattr(span_export, "MAX_WAITING", 10)
    collector.delay_s = 0.5
    sent = SentTraces("gateway", collector.url + PATH)
    sent.span("first").end()
    time.sleep(0.1)  # The thread has it, and waits for the answer.
    for _ in range(25):
        sent.span("more").end()
    assert sent.dropped == 15
    collector.wait_for(lambda spans: len(spans) == 11)
    sent.close()


def test_what_waits_is_sent_at_the_end(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    """A process that ends sends its last spans; afterwards it takes no more."""
    monkeypatch.setattr(span_export, "EVERY_S", 60.0)
    sent = SentTraces("gateway", collector.url + PATH)
    sent.span("last").end()
    sent.close()
    sent.close()
    assert [each.name for each in collector.spans] == ["last"]
    sent.span("late").end()
    assert sent.dropped == 1


def test_a_slow_collector_holds_the_end_up_no_longer_than_said(
    monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    """Half a second, whatever it takes."""
    monkeypatch.setattr(span_export, "CLOSE_WITHIN_S", 0.1)
    collector.delay_s = 1.0
    sent = SentTraces("gateway", collector.url + PATH)
    sent.span("last").end()
    began = time.perf_counter()
    sent.close()
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize(
    ("said", "variables", "expected"),
    [
        ("", {}, ""),
        ("http://a:4318/", {}, "http://a:4318/v1/traces"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4318"}, "http://b:4318/v1/traces"),
        ("http://a:1", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4318"}, "http://a:1/v1/traces"),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/own/path"}, "http://c/own/path"),
        ("http://a:1", {"OTEL_SDK_DISABLED": "true"}, ""),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4318", "OTEL_TRACES_EXPORTER": "none"}, ""),
        (
            "",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4318", "OTEL_TRACES_EXPORTER": "otlp"},
            "http://b:4318/v1/traces",
        ),
    ],
)
def test_where_traces_go(said: str, variables: Mapping[str, str], expected: str) -> None:
    """The setting before the standard variables, and nowhere where these turn traces off."""
    assert endpoint_of(said, variables) == expected


def test_a_wrong_address_is_refused() -> None:
    """At the start, with the flag's name."""
    with pytest.raises(ValueError, match="--otlp-endpoint"):
        TraceSettings("collector:4317").check_traces()


def test_nothing_is_imported_without_a_collector() -> None:
    """Nor made: all processes share one that keeps nothing."""
    assert TraceSettings().traces("gateway") is NO_TRACES
    asked = "import sys; from service.trace_settings import TraceSettings; TraceSettings().traces('gateway')"
    printed = subprocess.run(
        [sys.executable, "-c", f"{asked}; print('opentelemetry' in sys.modules)"],
        capture_output=True, text=True, env=with_paths(), check=True, timeout=60,
    )  # fmt: skip
    assert printed.stdout == "False\n"


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a flag asks for traces the process does not start; where a variable does, which may be meant for others, it
    warns and goes on."""
    monkeypatch.delitem(sys.modules, "service.span_export")
    missing: Any = None
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", missing)
    with pytest.raises(SystemExit, match=r"\.\[traces\]"):
        TraceSettings("http://a:4318").traces("gateway")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:4318")
    with capture_logs() as lines:
        assert TraceSettings().traces("gateway") is NO_TRACES
    assert [each["event"] for each in lines] == ["traces are not sent"] and ".[traces]" in lines[0]["why"]
