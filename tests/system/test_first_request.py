"""The first request after a start is about as quick as those behind it."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from bench.random_llama import Shape, write_checkpoint
from processes import ROOT, free_port

from service.serve import DEMO

pytestmark = pytest.mark.system

READY_WITHIN_S = 150.0

MANY_PLACES = Shape(hidden=128, layers=24, intermediate=128, heads=8, kv_heads=8, vocab=4096, positions=2048)
"""Tiny, but the keys and values of a position lie in as many places as in a model of 600 million parameters."""


def checkpoint(name: str, folder: Path) -> Path:
    """The demo model, or one that stores in many places, with the demo model's tokenizer."""
    if name == "demo":
        return DEMO
    write_checkpoint(MANY_PLACES, folder)
    for file in DEMO.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


@pytest.mark.parametrize("name", ["many places", pytest.param("demo", marks=pytest.mark.slow)])
def test_the_first_request_is_as_quick_as_the_next(name: str, tmp_path: Path) -> None:
    """Its time to the first token is at most three times the median of the next seven, and 0.3 s."""
    model, port, log = checkpoint(name, tmp_path / "model"), free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "service.command", "serve", "--port", str(port), "--model", str(model)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        serving = subprocess.Popen(
            [*command, "--threads", "1", "--draft", "none"],
            stdout=output, stderr=output, cwd=ROOT, env=environment,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while "Ctrl-C" not in log.read_text():
            assert serving.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            served = client.get("/v1/models").json()["data"][0]["id"]
            first, *rest = [to_first_token(client, served, f"Once upon a time, fox {each}") for each in range(8)]
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(60)
    assert first <= 3 * statistics.median(rest) + 0.3, (first, rest)


def to_first_token(client: httpx.Client, model: str, prompt: str) -> float:
    """Seconds from a request to the first token of its answer."""
    body = {"model": model, "prompt": prompt, "max_tokens": 4, "stream": True, "temperature": 0, "ignore_eos": True}
    began = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if line.startswith("data:"):
                return time.perf_counter() - began
    raise AssertionError("no token came")
