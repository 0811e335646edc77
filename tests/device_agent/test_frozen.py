"""Networks that stand still without a word: whoever waits knows it by the silence, and the answer goes on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from clouds import chain_over, cloud_here, device_hello, greedy, remote_middle, until
from freezing_proxy import FreezingProxy
from oracle import oracle_tokens, prompt_for

import wire.connection
import wire.dialled
from device_agent.sharing.compute import Compute
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.limits import CLOUD_LINK
from wire.stream import dial

PROMPT, TOKENS, CHUNK = 50, 10, 10
PREFILL_BYTES = 4000
"""What has left when two or three of the five chunks have."""
SILENT_S = 1.2


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed in a tenth of the time."""
    monkeypatch.setattr(wire.connection, "DEAD_AFTER_S", SILENT_S)
    monkeypatch.setattr(wire.connection, "HEARTBEAT_S", SILENT_S / 5)
    monkeypatch.setattr(wire.connection, "HELLO_WITHIN_S", SILENT_S)
    monkeypatch.setattr(wire.dialled, "HELLO_WITHIN_S", SILENT_S)


async def test_an_answer_behind_a_network_that_stands_still(tiny: Path) -> None:
    """In the middle of a prefill, in one direction or both: it goes on over a new connection, or at another cloud where
    no new one gets through, and the cloud that was left keeps nothing of it."""
    prompt = prompt_for(tiny, PROMPT)
    async with cloud_here(tiny, 1, 1, resume_s=0.5) as first, cloud_here(tiny, 1, 1) as second:
        first_port = int(first.url.rpartition(":")[2])

        async def answer(ways: tuple[str, ...], another: bool) -> None:
            compute = Compute()
            async with AsyncExitStack() as stack:
                stack.callback(compute.stop)
                way = stack.enter_context(FreezingProxy(first_port))
                urls = [f"ws://127.0.0.1:{way.port}", *([second.url] if another else [])]
                remote = await stack.enter_async_context(remote_middle(urls, device_hello(tiny, 1, 1)))
                way.freeze_after(PREFILL_BYTES, *ways)
                way.swallows = another
                chain = chain_over(tiny, 1, 1, remote, compute, CHUNK)
                assert await greedy(chain, list(prompt), TOKENS) == right
                assert way.frozen.is_set()

        right = oracle_tokens(tiny, prompt, TOKENS)
        began = asyncio.get_running_loop().time()
        ways = ((), ("up",), ("down",))
        await asyncio.gather(*(answer(each, another) for each in ways for another in (False, True)))
        # A tenth of the patience that is not shortened, and room for a busy machine.
        assert asyncio.get_running_loop().time() - began < 10 * SILENT_S
        await until(lambda: not first.server.engine.ledger.entries)


async def test_a_dial_that_nobody_answers() -> None:
    """TCP connects and nothing follows, in the handshake of TLS or of the websocket: the dial ends, typed, in time."""
    with FreezingProxy(0) as way:
        way.swallows = True
        dials = (entered(f"{scheme}://127.0.0.1:{way.port}/") for scheme in ("ws", "wss"))
        ended = await asyncio.wait_for(asyncio.gather(*dials, return_exceptions=True), 5 * SILENT_S)
    assert [each.code for each in ended if isinstance(each, ConnectionFailed)] == [Code.LOST] * 2


async def entered(url: str) -> None:
    """Connect, and go again."""
    async with dial(url, Role.DEVICE, CLOUD_LINK):
        pass
