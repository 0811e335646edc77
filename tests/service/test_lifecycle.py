"""Addresses, logs and children: what every process relies on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processes import ROOT

from service.addresses import is_loopback
from service.children import Children
from service.lifecycle import listening


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback(host: str) -> None:
    """Only this machine can reach these."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "127.0.0.1.example.org"])
def test_beyond_loopback(host: str) -> None:
    """Anything else counts as open to others, names included."""
    assert not is_loopback(host)


def test_a_port_in_use_is_said_plainly() -> None:
    """The message names the address and what to do; no traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = subprocess.run(
            [sys.executable, "-m", "gateway", "--port", port], capture_output=True, text=True, cwd=ROOT, timeout=60
        )
    assert result.returncode != 0
    assert f"127.0.0.1:{port}" in result.stderr and "--port" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_peers_choose_cannot_steer_a_terminal(form: str) -> None:
    """Control characters in logged values are replaced; JSON lines are JSON."""
    code = (
        "import structlog; from service.logs import configure_logs; "
        f"configure_logs('test', form='{form}'); structlog.get_logger().info('hello', name='a\\x1b[2Jb', n=1)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "\x1b" not in result.stderr and "hello" in result.stderr
    if form == "json":
        line = json.loads(result.stderr)
        assert line["event"] == "hello" and line["process"] == "test" and line["n"] == 1


def test_what_libraries_log_is_json_too() -> None:
    """Where lines are for collectors each is an object, a traceback within it."""
    code = (
        "import logging; from service.logs import configure_logs; configure_logs('test', form='json')\n"
        "log = logging.getLogger('elsewhere'); log.warning('it is %s', 'so')\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    log.exception('no')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    warning, error = map(json.loads, result.stderr.splitlines())
    about = {"event": "it is so", "level": "warning", "logger": "elsewhere", "process": "test"}
    assert about.items() <= warning.items() and "timestamp" in warning
    assert error["level"] == "error" and "ZeroDivisionError" in error["exception"]


def test_children_are_stopped_kindly_then_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stops on SIGINT ends by itself; one that ignores it is killed in time; both are seen to be gone."""
    monkeypatch.setattr("service.children.STOP_WITHIN_S", 4.0)
    ready = [tmp_path / "kind", tmp_path / "deaf"]
    wait = "import signal, sys, time, pathlib; {}; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    children = Children()
    children.start("kind", [sys.executable, "-c", wait.format("pass"), str(ready[0])])
    deaf = wait.format("signal.signal(signal.SIGINT, signal.SIG_IGN)")
    children.start("deaf", [sys.executable, "-c", deaf, str(ready[1])])
    while not all(each.exists() for each in ready):
        assert children.ended() is None
        os.sched_yield()
    for each in ready:
        children.ready(each.name)
    started = [psutil.Process(process.pid) for process in children._processes.values()]
    children.stop()
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in started)
    codes = {process.returncode for process in children._processes.values()}
    assert -signal.SIGKILL in codes and len(codes) == 2


def test_a_spare_child_may_end(capfd: pytest.CaptureFixture[str]) -> None:
    """The others go on, its end is said once, and it can be started again."""
    children = Children()
    for name in ("needed", "spare"):
        children.start(name, [sys.executable, "-c", "import time; time.sleep(60)"])
    children.spare("spare")
    assert children.left() == {} and children.ended() is None
    children._processes["spare"].kill()
    left: dict[str, int] = {}

    def one_has_left() -> bool:
        left.update(children.left())
        return bool(left)

    assert children.wait(one_has_left) is None
    assert left == {"spare": -signal.SIGKILL} and children.left() == {}
    assert children.ended() is None
    children.start_again("spare")
    assert children.left() == {} and children._processes["spare"].poll() is None
    children.kill()
    ended = children.wait(lambda: False)
    assert ended == ("needed", -signal.SIGKILL)
    children.stop()


def test_children_that_only_begin_end_without_a_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody who stops a start half-way wants to read a traceback of each."""
    children, begun = Children(), tmp_path / "begun"
    wait = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    children.start("one", [sys.executable, "-c", wait, str(begun)])
    while not begun.exists():
        assert children.ended() is None
        os.sched_yield()
    children.stop()
    assert children.ended() == ("one", -signal.SIGTERM)
    assert capfd.readouterr().err == ""


async def test_small_messages_do_not_wait_for_acknowledgements() -> None:
    """What the servers listen on makes asyncio send at once: a token's message would else wait for 40 ms."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    listener = listening("127.0.0.1", 0)
    server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), sock=listener)
    async with server:
        _, writer = await asyncio.open_connection(*listener.getsockname())
        served = await asyncio.wait_for(accepted.get(), 10.0)
        assert served.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        served.close()
        writer.close()
