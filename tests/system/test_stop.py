"""SIGTERM lets open answers end, Ctrl-C does not; twice is hard, and nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from installation import Installation, wait_until
from processes import ROOT, free_port
from serving import Serving
from streamed import Answer, stream_answer

from service.stopping import DRAIN_S, SAME_S

pytestmark = pytest.mark.system

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "temperature": 0}
LONG = {**ASK, "max_tokens": 300, "ignore_eos": True}
ENDLESS = {**ASK, "max_tokens": 900, "ignore_eos": True}


class Asked:
    """An answer that is streamed on a thread of its own."""

    def __init__(self, base: str, body: dict[str, Any], begun: int = 5) -> None:
        self._begun = threading.Event()
        self._answers: list[Answer] = []

        def seen(count: int) -> None:
            if count == begun:
                self._begun.set()

        self._thread = threading.Thread(target=lambda: self._answers.append(stream_answer(base, body, seen)))
        self._thread.start()

    def wait_begun(self) -> None:
        """Until some of it has come."""
        assert self._begun.wait(60)
        assert self._thread.is_alive()

    def answer(self) -> Answer:
        """All that came."""
        self._thread.join(60)
        return self._answers[0]


LOCAL = ("--mode", "local")
"""The parent with two children: which they are is nothing to the signals, and a cloud has to be waited for."""


def refused(base: str) -> bool:
    """Whether a new request is sent away now, as a load balancer and a client understand it."""
    asked = {**ASK, "max_tokens": 1}  # One that is let in takes no longer than what it is asked beside.
    reply = httpx.post(f"{base}/chat/completions", json=asked, timeout=30, trust_env=False)
    return reply.status_code == 503 and "Retry-After" in reply.headers


def test_sigterm_lets_open_answers_end(tmp_path: Path) -> None:
    """What a newcomer runs answers where it says. A supervisor's SIGTERM in the middle of a stream: it ends complete,
    as if nothing had happened; who comes meanwhile is sent away; then all processes end, the exit status is 0."""
    with Serving(tmp_path / "log", "--drain-within-s", "60") as running:
        printed = running.log.read_text()
        assert running.base in printed and "trilby chat" in printed
        expected = stream_answer(running.base, LONG)
        assert expected.done and expected.reason == "length"
        asked = Asked(running.base, LONG)
        asked.wait_begun()
        children = running.children()
        assert len(children) == 3
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refused(running.base), 20)
        assert asked.answer().outcome == expected.outcome
        assert running.process.wait(30) == 0
        assert psutil.wait_procs(children, timeout=10)[1] == []
        assert "Traceback" not in running.log.read_text() and "within 69 s" in running.log.read_text()


@pytest.mark.slow
def test_sigterm_to_all_processes_is_one(tmp_path: Path) -> None:
    """As systemd sends it: to the stages of the cloud too, and then our own parent passes it on."""
    with Installation(tmp_path, forked=True, cloud_settings=("--stages", "2", "--threads", "1")) as installation:
        expected = stream_answer(installation.base, LONG)
        assert expected.done
        asked = Asked(installation.base, LONG)
        asked.wait_begun()
        processes = [each.process for each in (installation.gateway, installation.device, installation.cloud)]
        everyone = [psutil.Process(each.pid) for each in processes if each is not None]
        stages = everyone[-1].children()
        assert len(stages) == 1
        for _ in range(2):
            for each in [*everyone, *stages]:
                each.send_signal(signal.SIGTERM)
        wait_until(lambda: refused(installation.base), 20)
        assert asked.answer().outcome == expected.outcome
        assert [each.wait(30) for each in processes if each is not None] == [0, 0, 0]
        assert psutil.wait_procs(stages, timeout=10)[1] == []


def test_each_process_drains(tmp_path: Path) -> None:
    """SIGTERM to one of the three alone: what is open is finished, token for token; its successor serves."""
    body = {**LONG, "max_tokens": 120}
    with Installation(tmp_path, forked=True) as installation:
        expected = stream_answer(installation.base, body)
        assert expected.done
        for which in ("device", "cloud", "gateway"):
            wait_until(installation.ready)
            asked = Asked(installation.base, body)
            asked.wait_begun()
            process = getattr(installation, which).process
            process.send_signal(signal.SIGTERM)
            assert asked.answer().outcome == expected.outcome, which
            assert process.wait(30) == 0, which
            getattr(installation, f"start_{which}")()


@pytest.mark.parametrize("arguments", [LOCAL, pytest.param((), marks=pytest.mark.slow)], ids=["local", "with a cloud"])
def test_ctrl_c_stops_at_once(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Open answers end with an error, and all is over in a moment, without a traceback."""
    with Serving(tmp_path / "log", *arguments, forked=True) as running:
        asked = Asked(running.base, ENDLESS)
        asked.wait_begun()
        children, began = running.children(), time.monotonic()
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 0
        assert time.monotonic() - began < DRAIN_S
        assert psutil.wait_procs(children, timeout=10)[1] == []
        assert not asked.answer().done
        assert "Traceback" not in running.log.read_text()


def test_ctrl_c_twice_is_hard(tmp_path: Path) -> None:
    """Even where a process does not listen any more; the exit status is a shell's."""
    with Serving(tmp_path / "log", *LOCAL, forked=True) as running:
        children = running.children()
        children[0].suspend()
        running.process.send_signal(signal.SIGINT)
        running.wait_for("Stopping")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 130
        assert psutil.wait_procs(children, timeout=5)[1] == []


def test_ctrl_c_ignored_and_a_later_sigterm(tmp_path: Path) -> None:
    """As a shell starts what is to run in the background: SIGINT means nothing, SIGTERM still stops it; and who sends
    that again after a while does not want to wait for the open answers."""
    words = (*LOCAL, "--drain-within-s", "300")
    with Serving(tmp_path / "log", *words, ignore_ctrl_c=True, forked=True) as running:
        children = running.children()
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert httpx.get(f"{running.base}/models", trust_env=False).status_code == 200
        assert running.process.poll() is None
        asked = [Asked(running.base, ENDLESS) for _ in range(4)]
        for each in asked:
            each.wait_begun()
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refused(running.base), 20)
        while running.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(2 * SAME_S)
            running.process.send_signal(signal.SIGTERM)
        # A further signal may find the process at its very end, where it means what it means to any other.
        assert running.process.returncode in (0, -signal.SIGTERM)
        assert not any(each.answer().done for each in asked)
        assert psutil.wait_procs(children, timeout=10)[1] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start(number: int, tmp_path: Path) -> None:
    """Models are still being read: all ends at once, and nobody has to read a traceback."""
    with Serving(tmp_path / "log", until="cloud …") as running:
        children = running.children()
        running.process.send_signal(number)
        assert running.process.wait(60) == 0
        assert psutil.wait_procs(children, timeout=10)[1] == []
        assert "Stopping" in running.log.read_text() and "Traceback" not in running.log.read_text()


def test_ctrl_c_while_libraries_are_imported(tmp_path: Path) -> None:
    """One process alone, by its real command: it ends without a word."""
    command = [sys.executable, "-m", "service.command", "cloud", "--model", "models/demo", "--port", str(free_port())]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0] == b""
    assert process.returncode == -signal.SIGINT
