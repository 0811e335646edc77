"""What is counted is what the names say."""

from __future__ import annotations

import time

import pytest

from gateway.meter import RequestMeter
from gateway.metrics import GatewayMetrics
from wire.request_messages import Done


def test_a_request_waits_once_however_many_prompts_it_has() -> None:
    """Later prompts are accepted when earlier ones have been answered: that is no queue."""
    metrics = GatewayMetrics()
    meter = RequestMeter(metrics, time.perf_counter())
    for _ in range(3):
        meter.accepted("m", 5)
    text = metrics.text().decode()
    assert 'trilby_request_queue_time_seconds_count{model_name="m"} 1.0' in text
    assert 'trilby_prompt_tokens_total{model_name="m"} 15.0' in text


def test_drafted_tokens_are_counted_under_the_names_others_use() -> None:
    """Where something was drafted; who never drafts has no such lines."""
    metrics = GatewayMetrics()
    meter = RequestMeter(metrics, time.perf_counter())
    meter.accepted("m", 5)
    meter.part_done(Done(1, 5, 9))
    assert "trilby_spec_decode_num_draft_tokens_total{" not in metrics.text().decode()
    meter.part_done(Done(1, 5, 9, 2, 10, 7, 3))
    meter.part_done(Done(1, 5, 9, 0, 5, 0, 1))
    text = metrics.text().decode()
    assert 'trilby_spec_decode_num_draft_tokens_total{model_name="m"} 15.0' in text
    assert 'trilby_spec_decode_num_accepted_tokens_total{model_name="m"} 7.0' in text
    assert 'trilby_spec_decode_num_drafts_total{model_name="m"} 4.0' in text
    assert 'trilby_prefix_cache_queries_total{model_name="m"} 15.0' in text
    assert 'trilby_prefix_cache_hits_total{model_name="m"} 2.0' in text
    assert 'trilby_prompt_tokens_cached_total{model_name="m"} 2.0' in text


def test_the_times_of_a_request_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue, prefill and decode follow one another; a choice's time per token is of those behind its first delta, which
    may have several."""
    clock = [100.0]
    monkeypatch.setattr("gateway.meter.time.perf_counter", lambda: clock[0])
    metrics = GatewayMetrics()
    meter = RequestMeter(metrics, 100.0)

    def at(now: float) -> None:
        clock[0] = now

    at(101.0)
    meter.accepted("m", 7)
    at(103.0)
    meter.delta(0, 3)
    at(104.0)
    meter.delta(1, 1)
    at(107.0)
    meter.delta(0, 8)
    meter.finished("stop", 0)
    meter.finished("length", 1)
    at(108.0)
    meter.done()
    text = metrics.text().decode()
    for name, total, count in (
        ("request_queue_time_seconds", 1.0, 1),
        ("request_prefill_time_seconds", 2.0, 1),
        ("time_to_first_token_seconds", 3.0, 1),
        ("request_decode_time_seconds", 5.0, 1),
        ("request_inference_time_seconds", 7.0, 1),
        ("e2e_request_latency_seconds", 8.0, 1),
        ("request_time_per_output_token_seconds", 0.5, 1),  # 4 s for 8 tokens; the other choice has but one delta.
        ("request_prompt_tokens", 7.0, 1),
        ("request_generation_tokens", 12.0, 2),
    ):
        assert f'trilby_{name}_sum{{model_name="m"}} {total}\n' in text, name
        assert f'trilby_{name}_count{{model_name="m"}} {float(count)}\n' in text, name


def test_labels_are_few() -> None:
    """None of them is a client's, a device's or a request's."""
    metrics = GatewayMetrics()
    labels = {label for each in vars(metrics).values() for label in getattr(each, "_labelnames", ())}
    assert labels == {"model_name", "code", "finished_reason"}
