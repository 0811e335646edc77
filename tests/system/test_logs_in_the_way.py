"""Nobody reads the logs, or they cannot be written: answers go on, token for token, in all three processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from forked import ForkedProcess
from installation import Installation, wait_until
from processes import Process
from serving import Serving
from streamed import Answer, stream_answer
from websockets.sync.client import connect

pytestmark = pytest.mark.system

BODY = {
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "temperature": 0,
    "max_tokens": 150,
    "ignore_eos": True,
}
STRANGERS = 600
"""Requests for what is not there: with the logs blocked at the first line, 495 of them hung a gateway once."""
SOME = 60
"""Where writing fails at once, the first line is lost already."""


Way = Callable[[Path], AbstractContextManager[Path]]
"""Makes a place for logs that takes none."""


class Unread(ForkedProcess):
    """Its log is nothing that a test could read."""

    @property
    def output(self) -> str:
        """Nothing."""
        return ""


@dataclass
class Unheard(Installation):
    """An installation whose processes all log to one place."""

    log: Path = Path("/dev/full")

    def _start(self, module: str, log: str, arguments: list[str], port: int, environment: dict[str, str]) -> Process:
        arguments = [*arguments, "--log-level", "debug"]
        return Unread(module, *arguments, log=self.log, port=port, environment=environment).start()


@contextmanager
def blocked(folder: Path) -> Iterator[Path]:
    """A pipe that is full and that nobody reads, but that is not closed."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 4096)
    try:
        with suppress(BlockingIOError):
            while True:
                os.write(end, b"x" * 512)
        yield pipe
    finally:
        os.close(end)


@contextmanager
def full(folder: Path) -> Iterator[Path]:
    """A disk without room."""
    with Path("/dev/full").open("wb", buffering=0) as disk, pytest.raises(OSError) as refused:
        disk.write(b"x")
    assert refused.value.errno == errno.ENOSPC
    yield Path("/dev/full")


def counted(installation: Installation, name: str, port: int) -> float:
    """A counter without labels at a process's /metrics."""
    lines = installation.get("/metrics", port).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def dropped(installation: Installation) -> tuple[float, float]:
    """Lines that gateway and cloud have not got rid of."""
    return (
        counted(installation, "trilby_gateway_log_lines_dropped_total", installation.gateway_port),
        counted(installation, "trilby_cloud_log_lines_dropped_total", installation.cloud_port),
    )


def strangers(installation: Installation, count: int) -> None:
    """So many requests that are refused, each a line of the gateway's."""
    gateway = f"http://127.0.0.1:{installation.gateway_port}"
    with httpx.Client(base_url=gateway, timeout=20, trust_env=False, verify=False) as client:
        for number in range(count):
            assert client.get(f"/nothing/{number}").status_code == 404


def answer_while_all_talk(installation: Installation, count: int) -> Answer:
    """An answer behind so many strangers, during which the cloud is killed and started again."""
    strangers(installation, count)

    def seen(count: int) -> None:
        if count == 10:
            installation.cloud.end(signal.SIGKILL)
            installation.start_cloud()

    return stream_answer(installation.base, BODY, seen)


def stop_all(installation: Installation) -> list[int]:
    """Stop device, cloud and gateway as a supervisor does; their exit statuses."""
    return [each.end(signal.SIGTERM) for each in (installation.device, installation.cloud, installation.gateway)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "stages", "count"),
    [pytest.param(blocked, "2", STRANGERS, id="blocked"), pytest.param(full, "1", SOME, id="full")],
)
def test_logs_that_cannot_be_written(way: Way, stages: str, count: int, tmp_path: Path) -> None:
    """A pipe that nobody reads, and a full disk, from the start: every request is answered, an answer goes on in
    another life of its cloud with the same tokens, a stop is a clean one."""
    settings = ("--stages", stages, "--threads", "1")
    with way(tmp_path) as log, Unheard(tmp_path, log=log, cloud_settings=settings) as installation:
        expected = stream_answer(installation.base, BODY)
        assert expected.done and expected.tokens == 150
        assert answer_while_all_talk(installation, count).outcome == expected.outcome
        if way is full:
            wait_until(lambda: min(dropped(installation)) > 0)
        assert stop_all(installation) == [0, 0, 0]


@pytest.mark.slow
def test_logs_whose_reader_goes_away(tmp_path: Path) -> None:
    """As where a collector dies that stood behind a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with Unheard(tmp_path, log=pipe) as installation:
        expected = stream_answer(installation.base, BODY)
        assert expected.done
        os.close(reader)
        again: list[int] = []

        def seen(count: int) -> None:
            if count == 10:
                installation.cloud.end(signal.SIGKILL)
                again.append(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # Nobody can open a pipe without a reader.
                installation.start_cloud().wait_ready()
                os.close(again[0])

        strangers(installation, SOME)
        assert stream_answer(installation.base, BODY, seen).outcome == expected.outcome
        assert again
        with connect(f"ws://127.0.0.1:{installation.cloud_port}/device", proxy=None):
            pass  # A stranger who says nothing is worth a line of the cloud's, should it have said all else before.
        wait_until(lambda: min(dropped(installation)) > 0)
        assert stop_all(installation) == [0, 0, 0]


@pytest.mark.parametrize("way", [blocked, pytest.param(full, marks=pytest.mark.slow)], ids=["blocked", "full"])
def test_trilby_serve_whose_words_nobody_reads(way: Way, tmp_path: Path) -> None:
    """What it prints at the start is no more in the way than logs are: it serves, drains, and ends with status 0."""
    with way(tmp_path) as log, Serving(log, "--mode", "local", until="", forked=True) as running:
        wait_until(lambda: answers(f"http://127.0.0.1:{running.port}/ready"))
        assert stream_answer(running.base, BODY).done
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0


def answers(url: str) -> bool:
    """Whether it says 200."""
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
