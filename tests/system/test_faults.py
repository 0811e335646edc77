"""Parts that die: clear errors at once, and everything comes back by itself."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from installation import Installation, wait_until

pytestmark = pytest.mark.system

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "temperature": 0,
    "max_tokens": 40,
}
LONG = {**ASK, "max_tokens": 1500, "ignore_eos": True, "stream": True}
"""It is never complete: what it needs is killed."""


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation whose device soon gives up; whoever kills a part of it starts another."""
    folder = tmp_path_factory.mktemp("mended")
    with Installation(folder, forked=True, device_settings=("--recover-within-s", "1")) as installation:
        yield installation


def ask(installation: Installation) -> httpx.Response:
    """One short request."""
    return httpx.post(f"{installation.base}/chat/completions", json=ASK, timeout=60, trust_env=False)


def events(response: httpx.Response) -> Iterator[Any]:
    """The data of a stream; ``"[DONE]"`` as it is."""
    with suppress(httpx.RemoteProtocolError):
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


def break_in_the_middle(installation: Installation, kill: Any) -> list[Any]:
    """Stream an answer, call ``kill`` after some tokens; what came after that."""
    with httpx.stream(
        "POST", f"{installation.base}/chat/completions", json=LONG, timeout=60, trust_env=False
    ) as response:
        stream = events(response)
        for _ in range(15):
            assert "choices" in next(stream)
        kill()
        return list(stream)


def test_no_device(tmp_path: Path) -> None:
    """Without a device the answer is 503 with what to do, and /health is still fine."""
    with Installation(tmp_path, forked=True, with_device=False) as installation:
        reply = ask(installation)
        assert reply.status_code == 503 and "Retry-After" in reply.headers
        assert "trilby device" in reply.json()["error"]["message"]
        assert installation.get("/health").status_code == 200
        assert installation.get("/ready").status_code == 503
        assert installation.get("/v1/models").json()["data"] == []


def test_the_only_cloud_killed_for_good(mended: Installation) -> None:
    """The client gets a clear error and no [DONE] when no cloud comes within the recovery time, never an answer that
    looks complete; without a cloud 503; a new cloud serves again, same tokens."""
    before = ask(mended).json()["choices"]
    killed_at = 0.0

    def kill() -> None:
        nonlocal killed_at
        killed_at = time.monotonic()
        mended.cloud.end(signal.SIGKILL)

    rest = break_in_the_middle(mended, kill)
    assert 1 <= time.monotonic() - killed_at < 60
    assert rest[-1] != "[DONE]"
    error = rest[-1]["error"]
    assert set(error) == {"message", "type", "param", "code"} and "cloud" in error["message"]
    gone = ask(mended)
    assert gone.status_code == 503 and "Retry-After" in gone.headers
    mended.start_cloud()
    wait_until(mended.ready)
    assert ask(mended).json()["choices"] == before
    wait_until(lambda: mended.open_sessions(mended.cloud_port) == [])


def test_device_killed_in_the_middle(mended: Installation) -> None:
    """The client gets an error, never an ending that looks complete; the cloud frees all; a new device serves."""
    before = ask(mended).json()["choices"]
    rest = break_in_the_middle(mended, lambda: mended.device.end(signal.SIGKILL))
    assert "error" in rest[-1]
    wait_until(lambda: mended.open_sessions(mended.cloud_port) == [])
    assert ask(mended).status_code == 503
    mended.start_device()
    wait_until(mended.ready)
    assert ask(mended).json()["choices"] == before


def test_gateway_killed_in_the_middle(mended: Installation) -> None:
    """The device cancels what nobody waits for, and serves the gateway's successor without a restart."""
    before = ask(mended).json()["choices"]
    with suppress(httpx.HTTPError):
        break_in_the_middle(mended, lambda: mended.gateway.end(signal.SIGKILL))
    wait_until(lambda: mended.open_sessions(mended.cloud_port) == [])
    mended.start_gateway()
    wait_until(mended.ready)
    assert ask(mended).json()["choices"] == before


def test_other_weights_are_refused(tmp_path: Path) -> None:
    """A device cut differently from its cloud says which setting differs, and serves nothing."""
    with Installation(tmp_path, forked=True, with_device=False) as installation:
        installation.split = 3
        installation.start_device()
        try:
            wait_until(lambda: "split_mismatch" in installation.device.output)
            assert "--split" in installation.device.output
            reply = ask(installation)
            assert reply.status_code == 503
        finally:
            installation.device.end()
