"""``trilby serve`` with T5 in a group on this machine, through the API that clients use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from reading_models import translated, translator
from serving import Serving

from service.modes import MODES

pytestmark = pytest.mark.system

PROMPT = "the quick brown fox"
TOKENS = 24
GROUPS = [name for name, mode in MODES.items() if mode.group]


@pytest.fixture(autouse=True)
def profiles(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is kept for these tests, and not where users have it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def ask(base: str, **more: Any) -> list[str]:
    """The texts of an answer."""
    body = {"model": "model", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, **more}
    reply = httpx.post(base + "/completions", json=body, timeout=120, trust_env=False)
    assert reply.status_code == 200, reply.text
    return [each["text"] for each in reply.json()["choices"]]


def check_answers(base: str, wanted: str) -> None:
    """Several choices, a stop, seeds, and OpenAI's own client."""
    assert ask(base, n=3) == [wanted] * 3
    stop = wanted[6:9]
    assert ask(base, stop=stop) == [wanted[: wanted.index(stop)]]
    first, again, other = (ask(base, temperature=1, seed=seed, n=2) for seed in (1, 1, 2))
    assert first == again != other and first[0] != first[1]
    client: Any = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
    stream = client.completions.create(model="model", prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True)
    parts = [each.choices[0].text for each in stream]
    assert len(parts) > TOKENS // 2 and "".join(parts) == wanted


def check_a_kill(serving: Serving, wanted: str) -> None:
    """A member that is killed in the middle of a stream costs no token."""
    member = serving.member()
    body = {"model": "model", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    found: list[str] = []
    with httpx.stream("POST", serving.base + "/completions", json=body, timeout=120, trust_env=False) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
                if len(found) == 10:
                    member.kill()
    assert "".join(found) == wanted
    serving.wait_for("goes on without it")
    assert ask(serving.base) == [wanted]


@pytest.mark.parametrize(
    "mode", [pytest.param(each, marks=() if each == "galaxy" else pytest.mark.slow) for each in GROUPS]
)
def test_a_mode(mode: str, tmp_path: Path) -> None:
    """Two devices: what they answer is transformers', and goes on by one of them. Shares are as they were measured,
    but for the sample that is always run, which does not wait for it."""
    folder = translator("t5", tmp_path / "model", n_positions=128)
    wanted = translated(folder, PROMPT, TOKENS)
    arguments = ("--model", str(folder), "--dtype", "float32", "--mode", mode, "--devices", "2", "--threads", "1")
    shares = ("--shares", "even") if mode == "galaxy" else ()
    with Serving(tmp_path / "log", *arguments, *shares, forked=True) as serving:
        check_answers(serving.base, wanted)
        check_a_kill(serving, wanted)
        assert "Traceback" not in serving.log.read_text()
