"""Bad requests through the whole installation: a typed error each, and everybody else's tokens stay the same."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest
from click.testing import CliRunner
from forked import ForkedProcess
from installation import Installation
from processes import ROOT, free_port

from gateway.keys_command import main as keys

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


QUICK_S: Final = 5.0
"""A refusal takes milliseconds, a tenth of a second for 100,000 messages; here others use the same cores."""
FLAT_BYTES: Final = 32 * 2**20
LENGTH: Final = 150
"""Tokens of the stream beside: it lasts as long as all that is bad."""

DEEP: Final = "[" * 10_000 + "]" * 10_000
DEEP_OBJECT: Final = '{"a":' * 10_000 + "1" + "}" * 10_000
HUGE: Final = "n" * 1_000_000
TURN: Final = '{"role":"user","content":"x"}'
ASKED: Final = {
    "chat/completions": f'"messages":[{TURN}],"max_tokens":2',
    "completions": '"prompt":"x","max_tokens":2',
    "embeddings": '"input":"x"',
    "responses": '"input":"x","max_output_tokens":16',
    "messages": f'"messages":[{TURN}],"max_tokens":2',
    "decisions": '"input":"x","questions":[{"type":"predicate","instructions":"y"}]',
    "tokenize": '"prompt":"x"',
}
"""Of each endpoint what is good; a member more spoils it."""
EVERYWHERE: Final[dict[str, tuple[str, str, str | None]]] = {
    "deep and unknown": (f'"zzz":{DEEP}', "invalid_json", None),
    "deep metadata": (f'"metadata":{DEEP_OBJECT}', "invalid_json", None),
    "not a number": ('"temperature":NaN', "invalid_json", None),
    "no number there is": ('"zzz":-Infinity', "invalid_json", None),
    "half of a pair": ('"user":"\\ud800"', "invalid_json", None),
    "half of a pair as a name": ('"\\ud800":1', "invalid_json", None),
    "huge model": (f'"model":"{HUGE}"', "invalid_value", "model"),
}
"""What no endpoint takes."""
CHAT: Final = ASKED["chat/completions"]
ALONE: Final[dict[str, tuple[str, str, str, str | None]]] = {
    "messages": ("chat/completions", f'"messages":[{",".join([TURN] * 100_000)}]', "invalid_value", "messages"),
    "turns": ("responses", f'"input":[{",".join([TURN] * 100_000)}]', "invalid_value", "input"),
    "empty messages": (
        "messages", f'"max_tokens":2,"messages":[{",".join(["{}"] * 100_000)}]', "missing_required_parameter",
        "messages[0].role",
    ),
    "deep content": ("chat/completions", f'"messages":[{{"role":"user","content":{DEEP}}}]', "invalid_json", None),
    "deep schema": ("chat/completions", f'{CHAT},"guided_json":{DEEP_OBJECT}', "invalid_json", None),
    "deep questions": ("decisions", f'"input":"x","questions":{DEEP}', "invalid_type", "questions[0]"),
    "huge name": (
        "chat/completions", f'"messages":[{{"role":"user","content":"x","name":"{HUGE}"}}]', "invalid_value",
        "messages[0].name",
    ),
    "huge salt": ("chat/completions", f'{CHAT},"cache_salt":"{HUGE}"', "invalid_value", "cache_salt"),
    "huge metadata": (
        "responses",
        f'"input":"x","metadata":{{{",".join(chr(34) + str(at) + chr(34) + ":1" for at in range(100_000))}}}',
        "invalid_value",
        "metadata",
    ),
    "huge seed": ("chat/completions", f'{CHAT},"seed":{"9" * 100_000}', "invalid_value", "seed"),
    "too hot": ("chat/completions", f'{CHAT},"temperature":1e999', "invalid_value", "temperature"),
    "foreign prompt": ("completions", '"prompt":[99999999]', "invalid_value", "prompt"),
    "foreign input": ("embeddings", '"input":[[5],[99999999]]', "invalid_value", "input[1]"),
    "foreign tokens": ("detokenize", '"tokens":[99999999]', "invalid_value", "tokens"),
    "foreign bias": ("chat/completions", f'{CHAT},"logit_bias":{{"99999999":1}}', "invalid_value", "logit_bias"),
    "foreign stops": ("chat/completions", f'{CHAT},"stop_token_ids":[99999999]', "invalid_value", "stop_token_ids"),
    "foreign choice": (
        "chat/completions", f'{CHAT},"allowed_token_ids":[99999999]', "invalid_value", "allowed_token_ids"
    ),
    "no id at all": ("completions", '"prompt":[-1]', "invalid_value", "prompt"),
}  # fmt: skip
EXPLOSIVE: Final = {
    **{f"{name} at {path}": (path, f"{good},{more}", code, param)
       for path, good in ASKED.items() for name, (more, code, param) in EVERYWHERE.items()},
    **ALONE,
}  # fmt: skip


async def test_what_explodes_is_refused_at_once_and_takes_no_memory(installation: Installation) -> None:
    """Each of them an OpenAI error with its code and member, in no time, and a second time without the gateway growing;
    whoever has a stream open meanwhile gets the same text as alone."""
    assert installation.gateway.process is not None
    gateway = psutil.Process(installation.gateway.process.pid)
    body = {**GOOD, "max_tokens": LENGTH, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=installation.base, trust_env=False, timeout=60) as client:
        alone = await client.post("/chat/completions", json=body)

        async def streamed() -> str:
            text = ""
            async with client.stream("POST", "/chat/completions", json={**body, "stream": True}) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            return text

        async def refused(name: str) -> None:
            path, members, code, param = EXPLOSIVE[name]
            content, headers = "{" + members + "}", {"Content-Type": "application/json"}
            began = time.monotonic()
            reply = await client.post(f"/{path}", content=content, headers=headers)
            took = time.monotonic() - began
            found = reply.json().get("error", {})
            assert (reply.status_code, found.get("code"), found.get("param")) == (400, code, param), (name, found)
            assert took < QUICK_S and len(found["message"]) <= 1024 and found["type"] == "invalid_request_error", name

        async def all_of_them() -> None:
            for name in EXPLOSIVE:
                await refused(name)

        beside = asyncio.create_task(streamed())
        await all_of_them()
        before = gateway.memory_info().rss
        await all_of_them()
        assert gateway.memory_info().rss - before < FLAT_BYTES
        assert await beside == await streamed() == alone.json()["choices"][0]["message"]["content"]


async def test_what_nobody_knows_is_accepted(installation: Installation) -> None:
    """Members of other servers and of times to come, however large; the model may be left out, or be nobody's business
    where it is null."""
    base, more = installation.base, {"metadata": {"chat": "1"}, "zzz": [{"deep": [[[1]]]}], "user": HUGE}
    async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client, bystanders(client, base):
        for path, good in ASKED.items():
            for model in ({}, {"model": None}, {"model": "trilby-demo"}):
                reply = await client.post(f"/{path}", json={**json.loads("{" + good + "}"), **more, **model})
                assert reply.status_code == 200, (path, reply.text[:500])


def test_keys_that_are_worth_nothing(tmp_path: Path) -> None:
    """Expired, revoked, wrong or huge ones, or none: a 401 at once that says what to do, and never which keys there
    are; a good one beside them comes in."""
    store, port = str(tmp_path / "keys.json"), free_port()

    def run(*words: str) -> str:
        done = CliRunner().invoke(keys, ["--key-store", store, *words])
        assert done.exit_code == 0, done.output
        return next((word for word in done.output.split() if word.startswith("sk-")), "")

    good, old, gone = run("add", "good"), run("add", "old", "--days", "0.0000001"), run("add", "gone")
    run("revoke", "gone")
    arguments = ("--port", str(port), "--key-store", store)
    with (
        ForkedProcess("gateway", *arguments, log=tmp_path / "log", port=port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", trust_env=False, timeout=20) as client,
    ):
        for key, why in (
            (old, "has expired at"),
            (gone, "is wrong"),
            ("sk-wrong", "is wrong"),
            ("k" * 4000, "is wrong"),
            (None, "send it as"),
        ):
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            began = time.monotonic()
            for reply in (
                client.get("/models", headers=headers),
                client.post("/chat/completions", json=GOOD, headers=headers),
            ):
                assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
                error = reply.json()["error"]
                assert error["code"] == "invalid_api_key" and why in error["message"], error
                assert key is None or key not in error["message"]
            assert time.monotonic() - began < 2 * QUICK_S
        assert client.get("/models", headers={"Authorization": f"Bearer {good}"}).status_code == 200
