"""What is counted is what the names say."""

from __future__ import annotations

import time

from gateway.metrics import GatewayMetrics, RequestMeter


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
    meter.drafted(0, 0)
    assert "trilby_spec_decode_num_draft_tokens_total{" not in metrics.text().decode()
    meter.drafted(10, 7)
    meter.drafted(5, 0)
    text = metrics.text().decode()
    assert 'trilby_spec_decode_num_draft_tokens_total{model_name="m"} 15.0' in text
    assert 'trilby_spec_decode_num_accepted_tokens_total{model_name="m"} 7.0' in text
