"""Bad requests through the whole installation: a typed error each, and everybody else's tokens stay the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

import httpx
import pytest
from installation import Installation
from processes import ROOT

pytestmark = pytest.mark.system

GOOD: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story about a river."}],
    "temperature": 0,
    "max_tokens": 24,
}
BAD: dict[str, tuple[dict[str, Any] | bytes, int, str | None]] = {
    "million tokens": ({"messages": [{"role": "user", "content": "hi " * 1_000_000}]}, 400, "context_length_exceeded"),
    "long prompt": ({"messages": [{"role": "user", "content": "fox " * 3000}]}, 400, "context_length_exceeded"),
    "huge body": (b"{" + b" " * 5_000_000 + b"}", 413, None),
    "huge n": ({**GOOD, "n": 10**9}, 400, None),
    "negative max_tokens": ({**GOOD, "max_tokens": -2}, 400, None),
    "broken JSON": (b'{"messages": [', 400, None),
    "NaN temperature": (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400, None),
    "lone surrogate": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, None),
    "bias outside the vocabulary": ({**GOOD, "logit_bias": {"999999": 1}}, 400, None),
    "unknown model": ({**GOOD, "model": "../../etc/passwd"}, 404, "model_not_found"),
    "no messages": ({"messages": []}, 400, None),
    "odd role": ({"messages": [{"role": "wizard", "content": "x"}]}, 400, None),
}


@lru_cache
def before(base: str) -> Any:
    """What a good request is answered."""
    return httpx.post(f"{base}/chat/completions", json=GOOD, trust_env=False, timeout=60).json()["choices"]


@asynccontextmanager
async def bystanders(client: httpx.AsyncClient, base: str) -> AsyncIterator[None]:
    """Good requests beside and after the block give the same text as before all."""
    expected = await asyncio.to_thread(before, base)
    beside = [asyncio.create_task(client.post("/chat/completions", json=GOOD)) for _ in range(2)]
    yield
    after = await client.post("/chat/completions", json=GOOD)
    for reply in [*await asyncio.gather(*beside), after]:
        assert reply.json()["choices"] == expected


@pytest.mark.parametrize("name", BAD)
async def test_bad_requests(name: str, installation: Installation) -> None:
    """An OpenAI-shaped error with the right status; good requests see nothing of it."""
    body, status, code = BAD[name]
    base = installation.base
    async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client, bystanders(client, base):
        if isinstance(body, bytes):
            headers = {"Content-Type": "application/json"}
            reply = await client.post("/chat/completions", content=body, headers=headers)
        else:
            reply = await client.post("/chat/completions", json=body)
    error = reply.json()["error"]
    assert reply.status_code == status, error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and (code is None or error["code"] == code)
    assert "Traceback" not in error["message"] and str(ROOT) not in error["message"]


async def test_bad_frames_at_the_cloud_leave_the_api_unharmed(installation: Installation) -> None:
    """Somebody who speaks garbage to the cloud's port is closed out; answers go on."""
    from websockets.asyncio.client import connect

    base = installation.base
    async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client, bystanders(client, base):
        for attack in (b"", b"\x80\x04K\x01.", b"TL\x01\x00\xff\xff\xff\xff", bytes(2**20)):
            async with connect(f"ws://127.0.0.1:{installation.cloud_port}/device", compression=None) as socket:
                await socket.send(attack)
                await socket.wait_closed()
                assert socket.close_code in (1002, 1007, 1009)
