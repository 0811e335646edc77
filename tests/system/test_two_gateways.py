"""Two gateways, one killed: its agent dials the other, and clients lose at most the streams that were open."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoints import DEMO
from faults.notes import note
from forked import ForkedProcess
from installation import wait_until
from oracle import oracle_answer
from processes import Process, free_port
from redis_here import RedisServer

pytestmark = pytest.mark.system

QUESTION = "Tell me a story about a fox."
KEY = "sk-two-gateways"
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
    "max_tokens": 30,
    "ignore_eos": True,
}
HEADERS = {"authorization": f"Bearer {KEY}"}


def gateway(redis: RedisServer, log: Path) -> Process:
    """One of several, on a port of its own."""
    port = free_port()
    secrets = {"TRILBY_REDIS": redis.url, "TRILBY_GATEWAY_TOKEN": "what-gateways-share", "TRILBY_API_KEYS": KEY}
    return ForkedProcess("gateway", "--port", str(port), log=log, port=port, environment=secrets)


def base(gateway: Process) -> str:
    return f"http://127.0.0.1:{gateway.port}"


def agents(gateway: Process) -> list[str]:
    """The agents that are connected to a gateway itself."""
    state = httpx.get(f"{base(gateway)}/state", headers=HEADERS, timeout=10, trust_env=False).json()
    return [each["name"] for each in state["agents"]]


def asked(gateway: Process) -> httpx.Response:
    """One short request."""
    url = f"{base(gateway)}/v1/chat/completions"
    return httpx.post(url, json=ASK, headers=HEADERS, timeout=60, trust_env=False)


def test_a_gateway_is_killed(tmp_path: Path) -> None:
    """The request that it answered through the other ends with an error that says so; the next one is answered as ever,
    by the same device, transformers' tokens; redis going too costs nothing more."""
    text, _ = oracle_answer(DEMO, QUESTION, 30, whole=True)
    with (
        RedisServer() as redis,
        gateway(redis, tmp_path / "one") as one,
        gateway(redis, tmp_path / "two") as two,
    ):
        both = f"ws://127.0.0.1:{one.port},ws://127.0.0.1:{two.port}"
        arguments = ("--model", str(DEMO), "--mode", "local", "--threads", "1", "--name", "home", "--gateway", both)
        with ForkedProcess("device_agent", *arguments, log=tmp_path / "device"):
            wait_until(lambda: agents(one) == ["home"])
            wait_until(lambda: asked(two).status_code == 200)
            assert asked(two).json()["choices"][0]["message"]["content"] == text
            body = {**ASK, "max_tokens": 2000, "stream": True}
            url = f"{base(two)}/v1/chat/completions"
            with httpx.stream("POST", url, json=body, headers=HEADERS, timeout=60, trust_env=False) as reply:
                lines = (line for line in reply.iter_lines() if line.startswith("data: "))
                for _ in range(5):
                    assert "choices" in json.loads(next(lines)[6:])
                killed = time.monotonic()
                one.end(signal.SIGKILL)
                rest = list(lines)
            assert json.loads(rest[-1][6:])["error"]["code"] == "upstream_lost"
            wait_until(lambda: asked(two).status_code == 200)
            note("plain", "kill -9 of one of two gateways", "an error that says so; the next answer is right",
                 compared=ASK["max_tokens"], recovered_s=time.monotonic() - killed)  # fmt: skip
            print(f"answered again {time.monotonic() - killed:.2f} s after the kill")
            assert agents(two) == ["home"]
            assert asked(two).json()["choices"][0]["message"]["content"] == text
            redis.kill()
            assert asked(two).json()["choices"][0]["message"]["content"] == text
            health = httpx.get(f"{base(two)}/health", timeout=10, trust_env=False)
            assert health.json() == {"status": "ok", "redis": "gone"}
