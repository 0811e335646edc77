"""``trilby serve`` with a group on this machine: every mode, through the API that clients use."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
import transformers
from checkpoints import DEMO
from collector import Collector
from installation import wait_until
from oracle import oracle_answer
from pruned_prompts import some_calibration
from reading_models import oracle_rows
from serving import Serving
from streamed import stream_answer

from service.modes import MODES

pytestmark = pytest.mark.system

QUESTION = "Tell me a story about a fox."
TOKENS = 12
"""Where processes with a thread each share few cores, each exchange of a step waits for somebody's turn."""
KILLED = 40
"""Of the answer in which a member is killed."""
LONG = " ".join(f"My friend number {number} lives in a small house by the sea." for number in range(12))
GROUPS = [name for name, mode in MODES.items() if mode.group]


@pytest.fixture(autouse=True)
def profiles(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is kept for these tests, and not where users have it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def ask(base: str, question: str, **more: Any) -> tuple[list[str], dict[str, Any]]:
    """The choices of a greedy answer, and the usage."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS, "temperature": 0, **more}
    reply = httpx.post(base + "/chat/completions", json={"ignore_eos": True, **body}, timeout=120, trust_env=False)
    assert reply.status_code == 200, reply.text
    return [each["message"]["content"] for each in reply.json()["choices"]], reply.json()["usage"]


def check_answers(base: str) -> None:
    """Short and long prompts, several choices, drafted or not, are transformers', and so are vectors; a seed's text
    does not depend on drafts."""
    for question in (QUESTION, LONG):
        text, prompt = oracle_answer(DEMO, question, TOKENS, whole=True)
        said, usage = ask(base, question, n=2)
        assert (said, usage["prompt_tokens"]) == ([text] * 2, prompt)
        assert ask(base, question, draft="none")[0] == [text]
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(DEMO)
    body, wanted = (
        {"input": [QUESTION, LONG]},
        [oracle_rows(DEMO, tokenizer(each)["input_ids"])[-1] for each in (QUESTION, LONG)],
    )
    told = httpx.post(base + "/embeddings", json=body, timeout=120, trust_env=False).json()["data"]
    torch.testing.assert_close(
        torch.tensor([each["embedding"] for each in told]), torch.stack(wanted), rtol=0, atol=1e-4
    )
    drawn = [ask(base, QUESTION, seed=3, temperature=0.9, draft=draft)[0] for draft in ("none", "lookup")]
    assert drawn[0] == drawn[1]


def working(base: str) -> int:
    """How many devices compute now."""
    [agent] = httpx.get(base.removesuffix("/v1") + "/state", timeout=10, trust_env=False).json()["agents"]
    return sum(each["state"] == "working" for each in agent["group"]["members"])


def check_a_kill(serving: Serving) -> None:
    """A member that is killed in the middle of a stream costs no token, and the next answer is whole."""
    text, _ = oracle_answer(DEMO, QUESTION, KILLED, whole=True)
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": KILLED, "temperature": 0}
    member = serving.member()
    answer = stream_answer(
        serving.base, {**body, "ignore_eos": True}, lambda count: member.kill() if count == 6 else None
    )
    assert (answer.text, answer.done, answer.error) == (text, True, {})
    serving.wait_for("goes on without it")
    assert ask(serving.base, QUESTION)[0] == [oracle_answer(DEMO, QUESTION, TOKENS, whole=True)[0]]


def test_galaxy(tmp_path: Path) -> None:
    """Two processes share the layers, as they were measured, and their times are in the traces. A parent that is killed
    leaves nobody behind."""
    words = "--mode", "galaxy", "--devices", "2", "--threads", "1"
    with Collector() as collector, Serving(tmp_path / "log", *words, "--otlp-endpoint", collector.url) as serving:
        check_memory(serving)
        check_answers(serving.base)
        check_times(serving, collector)
        check_a_kill(serving)
        assert serving.stop(signal.SIGKILL) == []


@pytest.mark.slow
def test_voltage(tmp_path: Path) -> None:
    """The same by rows, the same shares for both. Drained it ends in order, with all members."""
    with Serving(tmp_path / "log", "--mode", "voltage", "--shares", "even", "--threads", "1") as serving:
        assert serving.log.read_text().count("50% of a prompt's rows") == 2
        check_answers(serving.base)
        check_end(serving, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("mode", GROUPS)
def test_every_mode_with_three(mode: str, tmp_path: Path) -> None:
    """Of three devices with even shares one is killed, is started again and taken in; Ctrl-C ends all."""
    with Serving(tmp_path / "log", "--mode", mode, "--devices", "3", "--shares", "even", "--threads", "1") as serving:
        check_answers(serving.base)
        check_a_kill(serving)
        wait_until(lambda: working(serving.base) == 3)
        check_answers(serving.base)
        check_end(serving, signal.SIGINT)


@pytest.mark.slow
def test_a_limit_of_time(tmp_path: Path) -> None:
    """Three devices that lend one another heads say that they may leave some out. Once it is measured what prompts
    take, /state says which lose heads, and a limit below the floor is refused with it; who asks for exactness has
    transformers' answer."""
    some_calibration()
    limit = "--mode", "edgeformer", "--devices", "3", "--shares", "even", "--threads", "1", "--max-model-len", "256"
    with Serving(tmp_path / "log", *limit, "--t-max", "1e-9") as serving:
        [model] = httpx.get(serving.base + "/models", timeout=10, trust_env=False).json()["data"]
        assert model["lossy"] is True and model["t_max_s"] == 1e-9
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS, "temperature": 0}

        def asked(**more: Any) -> httpx.Response:
            return httpx.post(serving.base + "/chat/completions", json={**body, **more}, timeout=120, trust_env=False)

        wait_until(lambda: asked(max_tokens=1).status_code == 400)
        assert "with all attention heads left out" in asked().json()["error"]["message"]
        state = httpx.get(serving.base.removesuffix("/v1") + "/state", timeout=10, trust_env=False).json()
        assert "prompts of 1 tokens or more lose heads" in state["agents"][0]["group"]["why"]
        exact = asked(exact=True, ignore_eos=True).json()
        assert exact["choices"][0]["message"]["content"] == oracle_answer(DEMO, QUESTION, TOKENS, whole=True)[0]
        assert exact["timings"]["heads_pruned"] == 0


def check_times(serving: Serving, collector: Collector) -> None:
    """The portal's span says what a step takes each member, once both have told of some."""

    def answered() -> list[float]:
        ask(serving.base, QUESTION)
        answers = [each.facts for each in collector.spans if each.name == "answer"]
        assert all(each["trilby.mode"] == "galaxy" and each["trilby.members"] == 2 for each in answers)
        return [least for each in answers if (least := min(each["trilby.member_step_ms"])) > 0]

    wait_until(lambda: bool(answered()))
    assert {each.service for each in collector.spans} == {"trilby-gateway", "trilby-device"}


def check_memory(serving: Serving) -> None:
    """Together the devices count what is free once, as equal shares."""
    lines = [each.cmdline() for each in serving.children()]
    shares = [line[line.index("--memory") + 1] for line in lines if "--memory" in line]
    assert len(shares) == 2 and len(set(shares)) == 1
    assert 0 < sum(int(share.removesuffix("MB")) for share in shares) * 10**6 <= psutil.virtual_memory().total


def check_end(serving: Serving, number: signal.Signals) -> None:
    """No process is left, and nobody complains."""
    assert serving.stop(number) == []
    assert serving.process.returncode == 0 and "Traceback" not in serving.log.read_text()
