"""A client that goes away takes its work with it, down to the cloud's KV cache."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from installation import Installation
from websockets.asyncio.client import connect

pytestmark = pytest.mark.system

LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "max_tokens": 1800,
    "ignore_eos": True,
    "temperature": 1.0,
}
FREED_WITHIN_S = 10.0


async def sessions(installation: Installation) -> int:
    """Sessions open in the cloud, those kept for a next turn left out."""
    state = await asyncio.to_thread(installation.cloud_state)
    return sum(session["state"] == "open" for session in state["sessions"])


async def settles_at(installation: Installation, count: int) -> None:
    """The cloud has ``count`` sessions soon, and the gateway and device agree when it is none."""
    for _ in range(int(FREED_WITHIN_S / 0.05)):
        if await sessions(installation) == count:
            break
        await asyncio.sleep(0.05)
    assert await sessions(installation) == count
    if count == 0:
        state = await asyncio.to_thread(installation.cloud_state)
        assert state["pages"]["used"] == sum(session["pages"] for session in state["sessions"])
        for _ in range(int(FREED_WITHIN_S / 0.05)):
            running = (await asyncio.to_thread(installation.get, "/state")).json()["agents"][0]["running"]
            if running == 0:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the agent still counts the request")


async def test_closing_a_stream_frees_the_cloud(installation: Installation) -> None:
    """Three choices in flight, the client hangs up after the first tokens."""
    async with httpx.AsyncClient(base_url=installation.base, trust_env=False, timeout=60) as client:
        async with client.stream("POST", "/chat/completions", json={**LONG, "stream": True, "n": 3}) as response:
            lines = response.aiter_lines()
            for _ in range(20):
                await anext(lines)
            await settles_at(installation, 3)
        await settles_at(installation, 0)


async def test_giving_up_on_a_whole_answer_frees_the_cloud(installation: Installation) -> None:
    """A client that does not stream and closes its connection while it waits."""
    async with httpx.AsyncClient(base_url=installation.base, trust_env=False, timeout=60) as client:
        request = asyncio.create_task(client.post("/chat/completions", json={**LONG, "n": 2}))
        await settles_at(installation, 2)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await settles_at(installation, 0)


async def test_giving_up_on_decisions_frees_the_cloud(installation: Installation) -> None:
    """Eight forks of one conversation are at work, and hundreds of questions wait."""
    question = {"type": "predicate", "instructions": "The fox knows the way home. " * 20}
    body = {"input": "Once there was a fox. " * 20, "questions": [question] * 400}
    async with httpx.AsyncClient(base_url=installation.base, trust_env=False, timeout=60) as client:
        request = asyncio.create_task(client.post("/decisions", json=body))
        await settles_at(installation, 8)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await settles_at(installation, 0)


async def test_cancel_and_close_of_the_token_socket_free_the_cloud(installation: Installation) -> None:
    """A cancel message ends the request and leaves the socket open; closing the socket ends what runs."""
    async with connect(installation.base.replace("http", "ws") + "/stream", proxy=None) as socket:
        await socket.send(json.dumps(LONG))
        while json.loads(await socket.recv())["type"] != "delta":
            pass
        await settles_at(installation, 1)
        await socket.send(json.dumps({"type": "cancel"}))
        await settles_at(installation, 0)
        await socket.send(json.dumps(LONG))
        await settles_at(installation, 1)
    await settles_at(installation, 0)


async def test_who_waits_gets_the_place_of_who_leaves(tmp_path: Path) -> None:
    """With room for one request, a client that hangs up makes room for the next, which is answered, not refused."""
    with Installation(tmp_path, forked=True, device_settings=("--max-num-seqs", "1")) as installation:
        async with httpx.AsyncClient(base_url=installation.base, trust_env=False, timeout=60) as client:
            for _ in range(3):
                async with client.stream("POST", "/chat/completions", json={**LONG, "stream": True}) as response:
                    lines = response.aiter_lines()
                    await anext(lines)
                    waiting = asyncio.create_task(client.post("/chat/completions", json={**LONG, "max_tokens": 4}))
                    await asyncio.sleep(0.2)
                    assert not waiting.done()
                assert (await waiting).status_code == 200
