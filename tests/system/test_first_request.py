"""The first request after a start is about as quick as those behind it."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import httpx
import pytest
from bench.random_llama import Shape, speaking
from checkpoints import DEMO
from serving import Serving

pytestmark = pytest.mark.system

MANY_PLACES = Shape(hidden=128, layers=24, intermediate=128, heads=8, kv_heads=8, vocab=4096, positions=2048)
"""Tiny, but the keys and values of a position lie in as many places as in a model of 600 million parameters."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["many places", "demo"])
def test_the_first_request_is_as_quick_as_the_next(name: str, tmp_path: Path) -> None:
    """Its time to the first token is at most three times the median of the next seven, and 0.3 s: by the clock, or by
    what the processors did for it, where others keep them busy."""
    model = DEMO if name == "demo" else speaking(MANY_PLACES, tmp_path / "model")
    with (
        Serving(tmp_path / "log", "--model", str(model), "--threads", "1", "--draft", "none") as running,
        httpx.Client(base_url=running.base, trust_env=False, timeout=60) as client,
    ):
        served = client.get("/models").json()["data"][0]["id"]
        took = [to_first_token(running, client, served, f"Once upon a time, fox {each}") for each in range(8)]
    assert any(first <= 3 * statistics.median(rest) + 0.3 for first, *rest in zip(*took, strict=True)), took


def to_first_token(running: Serving, client: httpx.Client, model: str, prompt: str) -> tuple[float, float]:
    """Seconds from a request to the first token of its answer, and the processors' seconds for it."""
    body = {"model": model, "prompt": prompt, "max_tokens": 4, "stream": True, "temperature": 0, "ignore_eos": True}
    busy, began = processor_s(running), time.perf_counter()
    with client.stream("POST", "/completions", json=body) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if line.startswith("data:"):
                return time.perf_counter() - began, processor_s(running) - busy
    raise AssertionError("no token came")


def processor_s(running: Serving) -> float:
    """What its processes have had so far, in seconds."""
    return sum(sum(each.cpu_times()[:2]) for each in running.children())
