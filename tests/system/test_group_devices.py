"""A group of devices begun one by one, as on several machines: a portal, and members that find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoints import DEMO
from forked import ForkedProcess
from installation import wait_until
from oracle import oracle_answer
from processes import Process, free_port

pytestmark = pytest.mark.system

TOKEN = "a token of devices"
KEY = "a key of this test alone"
MODEL = ("--model", str(DEMO), "--threads", "1", "--shares", "even")
QUESTION = "Tell me a story about a fox."


def device(log: Path, *arguments: str, key: str = KEY) -> Process:
    """A process that has its secrets by the environment."""
    secrets = {"TRILBY_GROUP_KEY": key, "TRILBY_DEVICE_TOKEN": TOKEN}
    return ForkedProcess("device_agent", *MODEL, *arguments, log=log, environment=secrets)


def test_a_member_finds_its_group_by_the_gateway(tmp_path: Path) -> None:
    """It is told the group's name only. Who does not know the key gets no place, whatever it has found; the answer is
    transformers', and the API shows who computes what."""
    port = free_port()
    where = ("--gateway", f"ws://127.0.0.1:{port}")
    environment = {"TRILBY_DEVICE_TOKEN": TOKEN}
    base = f"http://127.0.0.1:{port}"
    listen = ("--group-listen", f"127.0.0.1:{free_port()}", "--group", "kitchen", "--name", "portal")

    def state() -> dict[str, Any]:
        agents = httpx.get(f"{base}/state", timeout=10, trust_env=False).json()["agents"]
        return next((dict(each["group"]) for each in agents if "group" in each), {"members": [], "formed": False})

    with (
        ForkedProcess("gateway", "--port", str(port), log=tmp_path / "gateway", port=port, environment=environment),
        device(tmp_path / "portal", "--mode", "pipeline", "--devices", "2", *listen, *where),
    ):
        with device(tmp_path / "stranger", "--join", "auto", "--group", "kitchen", *where, key="x" * 20) as stranger:
            wait_until(lambda: stranger.output.count("the secret is another one") > 2)
        wait_until(lambda: bool(state()["members"]))
        assert not state()["formed"]
        assert httpx.get(f"{base}/ready", timeout=10, trust_env=False).status_code == 503
        joining = ("--join", "auto", "--group", "kitchen", "--name", "helping", *where)
        with device(tmp_path / "member", *joining):
            wait_until(lambda: httpx.get(f"{base}/ready", timeout=10, trust_env=False).status_code == 200)
            body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 30, "temperature": 0}
            reply = httpx.post(
                f"{base}/v1/chat/completions", json={**body, "ignore_eos": True}, timeout=60, trust_env=False
            )
            text, _ = oracle_answer(DEMO, QUESTION, 30, whole=True)
            assert reply.json()["choices"][0]["message"]["content"] == text
            members = state()["members"]
            assert [(each["name"], each["state"]) for each in members] == [
                ("portal", "working"),
                ("helping", "working"),
            ]
            assert all(each["layers"] and each["memory_mb"] for each in members)
            [card] = httpx.get(f"{base}/v1/models", timeout=10, trust_env=False).json()["data"]
            assert [(each["name"], each["mode"], each["formed"]) for each in card["groups"]] == [
                ("kitchen", "pipeline", True)
            ]
