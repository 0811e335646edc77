"""Nothing textual in the cloud: every byte that reaches it, its log and its state are searched for canaries."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from canaries import CANARIES, PROMPT, found, needles
from checkpoints import DEMO
from fault_proxy import FaultProxy
from installation import Installation
from processes import free_port
from transformers import AutoTokenizer

pytestmark = pytest.mark.system


async def test_the_cloud_never_sees_text(tmp_path: Path) -> None:
    """Prompts with canaries, chat and completion, streamed and not: none of them, nor their ids, reaches the cloud."""
    port, seen = free_port(), list[bytes]()
    async with FaultProxy(f"ws://127.0.0.1:{port}", kept=seen) as proxy:
        installation = Installation(tmp_path, forked=True, cloud_port=port, cloud_url=proxy.url)
        await asyncio.to_thread(installation.__enter__)
        try:
            async with httpx.AsyncClient(base_url=installation.base, trust_env=False, timeout=60) as client:
                chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 24, "user": CANARIES[0]}
                for body in (chat, {**chat, "stream": True}):
                    assert (await client.post("/chat/completions", json=body)).status_code == 200
                plain = {"prompt": PROMPT, "max_tokens": 24, "stop": CANARIES[1], "echo": True}
                assert (await client.post("/completions", json=plain)).status_code == 200
                refused = await client.post("/completions", json={"prompt": PROMPT * 400})
                assert refused.status_code == 400
            state = json.dumps(installation.cloud_state())
            metrics = installation.get("/metrics", installation.cloud_port).text
        finally:
            await asyncio.to_thread(installation.__exit__)
    received = b"\n".join(seen)
    assert len(received) > 100_000, "the hidden states went this way"
    hidden = needles()
    assert found(received, hidden) == []
    assert found((state + metrics + installation.cloud.output).encode(), hidden) == []
    for log in (installation.gateway.output, installation.device.output):
        assert found(log.encode(), [word.encode() for word in CANARIES]) == [], "nor do prompts go into any log"


def test_the_search_finds_what_is_planted() -> None:
    """A frame with a canary in any of the forms would be found."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    hidden = needles()
    for planted in (
        PROMPT.encode(),
        base64.b64encode(PROMPT.encode()),
        struct.pack(f"<{len(ids)}q", *ids),
        msgspec.msgpack.encode(ids),
        str(ids).encode(),
        PROMPT.encode("utf-16-le"),
    ):
        assert found(b"\x01\x02" + planted + b"\x03", hidden)
