"""`trilby bench` against a server whose every time is known: what it sends, what it notes, and what it says."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import CliRunner, Result
from paced_server import KEY, MODEL, Pace, PacedServer
from processes import ROOT, with_paths
from quick_server import QuickServer, eventually

from service.bench.__main__ import main
from service.bench.arrivals import due_times
from service.bench.asked import NOT_SENT, Asked
from service.bench.asking import Connections
from service.bench.config import BenchConfig
from service.bench.figures import figures
from service.bench.sending import Load
from service.lifecycle import listening


@asynccontextmanager
async def running(pace: Pace) -> AsyncIterator[tuple[PacedServer, str]]:
    """The server, and the base of its API."""
    app, listener = PacedServer(pace), listening("127.0.0.1", 0)
    server = QuickServer(uvicorn.Config(app, log_level="critical", lifespan="off"))
    task = asyncio.create_task(server._serve([listener]))
    await eventually(lambda: server.started)
    try:
        yield app, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.stop.set()
        await task
        listener.close()


@contextmanager
def serving(pace: Pace) -> Iterator[tuple[PacedServer, str]]:
    """The same in a thread, for a command that has a loop of its own."""
    found: list[Any] = []
    there, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with running(pace) as both:
            found.extend(both)
            there.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert there.wait(30)
    try:
        yield found[0], found[1]
    finally:
        over.set()
        thread.join()


def bench(url: str, *words: str) -> Result:
    """The command, in this process."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        return CliRunner().invoke(main, [url, *words])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_load_in_figures(tmp_path: Path) -> None:
    """At two rates: as many requests as were due and one before them, each streamed with its usage; times that are not
    below the server's own, and tokens as it counts them; a table, JSON and a picture; a line for each rate."""
    limits = ("--goodput", "ttft:10000,itl:10000", "--json", str(tmp_path / "j"), "--plot", str(tmp_path / "p.svg"))
    load = (
        "--rate",
        "10,20",
        "--seconds",
        "1",
        "--arrivals",
        "constant",
        "--max-tokens",
        "4",
        "--body",
        '{"top_p": 1}',
    )
    with serving(Pace(0.05, 0.02, key=KEY)) as (server, url):
        result = bench(url, "--api-key", KEY, "--body", '{"top_p": 1}', *load, *limits)
    assert result.exit_code == 0, result.output
    assert len(server.asked) == 31
    for body in server.asked:
        assert body["stream"] and body["stream_options"] == {"include_usage": True} and body["top_p"] == 1
        assert (body["model"], body["max_tokens"], body["temperature"]) == (MODEL, 4, 0)
        assert len(body["messages"][0]["content"].split()) >= 40 and "ignore_eos" not in body
    told = json.loads((tmp_path / "j").read_text())
    assert KEY not in json.dumps(told) and told["model"] == MODEL and told["load"]["arrivals"] == "constant"
    for rate, each in zip((10, 20), told["rates"], strict=True):
        assert each["due"] == each["sent"] == each["answered"] == each["good"] == rate
        assert each["tokens"] == 4 * rate and each["counted"] and not each["failed"]
        assert each["ttft"]["p50"] >= 50 and each["itl"]["p50"] >= 19 and each["e2e"]["p50"] >= 110
        assert each["tbt"]["count"] <= 3 * rate and each["seconds"] >= 1 - 1 / rate
        assert each["ttft"]["p50"] <= each["ttft"]["p99"] <= each["ttft"]["largest"] <= each["e2e"]["largest"]
    assert "time to first token, ms" in result.stdout and "Good answers keep ttft ≤ 10000 ms" in result.stdout
    assert "20 a second: 20 of 20 answers" in result.stderr
    assert (tmp_path / "p.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "absent"), "404 model_not_found: There is no model 'absent'"),
        (("--model", "refuses"), "429 rate_limit_exceeded: Try again later"),
        (("--model", "whole"), "Does it stream chat completions?"),
        (("--api-key", "sk-other"), "Incorrect API key provided"),
        (("--prompts", "/nowhere"), "cannot be read"),
        (("--json", "/nowhere/j"), "/nowhere/j cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(words: tuple[str, ...], said: str) -> None:
    """With the server's own words, before any load."""
    with serving(Pace(key=KEY)) as (server, url):
        result = bench(url, "--api-key", KEY, *words)
    assert result.exit_code == 1 and said in result.output
    assert len(server.asked) <= 1


def test_nobody_there() -> None:
    """The address without its password, and what to do."""
    for words in ((), ("--model", "named")):
        result = bench("http://somebody:secret@127.0.0.1:9/v1", *words)
        assert result.exit_code == 1 and "No answer from http://127.0.0.1:9/v1" in result.output
        assert "secret" not in result.output


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"url": "127.0.0.1:8000"}, "no URL"),
        ({"url": "http://HOST:PORT/v1"}, "no URL"),
        ({"url": "http://"}, "no URL"),
        ({"api_key": "schlüssel"}, "--api-key"),
        ({"rate": "1,x"}, "--rate"),
        ({"rate": "0"}, "--rate"),
        ({"rate": "nan"}, "--rate"),
        ({"rate": "1e9"}, "too many"),
        ({"max_tokens": 10**9}, "too many"),
        ({"goodput": "ttft:soon"}, "--goodput"),
        ({"goodput": "tpot:3"}, "--goodput"),
        ({"body": "[]"}, "--body"),
        ({"body": "{"}, "--body"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: dict[str, Any], said: str) -> None:
    """By name."""
    with pytest.raises(ValueError, match=said):
        BenchConfig(**setting)


def test_what_is_asked() -> None:
    """A prompt's own length, and fields put over it or taken out."""
    config = BenchConfig(body='{"temperature": null, "seed": 3}', ignore_eos=True, rate="1,2, 4")
    body = config.asks("m", [], 7)
    assert (body["max_tokens"], body["ignore_eos"], body["seed"]) == (7, True, 3) and "temperature" not in body
    assert config.asks("m", [], None)["max_tokens"] == 64 and config.seconds_each == 20


def bodies(model: str = MODEL, tokens: int = 4) -> Iterator[dict[str, Any]]:
    return itertools.repeat({"model": model, "messages": [], "max_tokens": tokens})


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("refuses", "429 rate_limit_exceeded"),
        ("breaks", "RemoteProtocolError"),
        ("fails", "failed while it was answered: upstream_lost"),
        ("whole", "broken off"),
        ("uncounted", ""),
    ],
)
async def test_how_a_request_ends(model: str, error: str) -> None:
    """A failure is noted by its kind, and the next request on the same connections is answered."""
    async with running(Pace(0.0, 0.0)) as (_, url), Connections(url, {}, True) as connections:
        asked, after = Asked(0.0), Asked(0.0)
        await connections.ask(asked, next(bodies(model)), time.perf_counter())
        await connections.ask(after, next(bodies()), time.perf_counter())
    assert asked.error == error and asked.answered is not bool(error)
    assert after.answered and (after.tokens, after.events) == (4, 4)
    assert asked.tokens is None


async def test_a_slow_server_is_not_waited_for() -> None:
    """Requests leave when they are due while answers queue; those behind the deadline are given up, and leave nothing
    open."""
    async with running(Pace(0.1, 0.0, slots=1)) as (server, url), Connections(url, {}, True) as connections:
        load = Load(connections, 100, lambda: None)
        await load.run(due_times("constant", 50.0, 0.5, 0), bodies(tokens=1), drain_s=0.3)
    assert len(server.asked) == len(load.asked) == 25
    found = figures(50.0, load.asked, load.seconds, {})
    assert found.late is not None and found.late.p50 < 50
    assert 0 < found.answered < 15 and found.answered + found.given_up == 25 and not found.failed
    assert 0.7 < found.seconds < 5


async def test_no_more_are_open_than_there_may_be() -> None:
    """What is due beyond that is not sent, and counts as failed."""
    async with running(Pace(0.0, 0.0)) as (server, url), Connections(url, {}, True) as connections:
        load = Load(connections, 2, lambda: None)
        await load.run([0.0, 0.0, 0.0, 0.0], bodies("stuck"), drain_s=0.1)
    assert len(server.asked) == 2 and [each.error for each in load.asked] == ["", "", NOT_SENT, NOT_SENT]
    assert figures(1.0, load.asked, 1.0, {}).too_late


async def test_a_load_that_is_held_up_knows_it() -> None:
    """Whatever keeps this process from sending in time."""
    async with running(Pace(0.0, 0.0)) as (_, url), Connections(url, {}, True) as connections:
        load = Load(connections, 100, lambda: time.sleep(0.05))
        await load.run(due_times("constant", 50.0, 0.5, 0), bodies(tokens=1), drain_s=10)
    assert figures(50.0, load.asked, load.seconds, {}).too_late


async def test_a_bug_ends_the_load() -> None:
    """Instead of a failed request that nobody understands."""
    async with running(Pace()) as (_, url), Connections(url, {}, True) as connections:
        load = Load(connections, 100, lambda: None)
        with pytest.raises(TypeError):
            await load.run([0.0, 0.05], itertools.repeat({"model": object()}), drain_s=10)


def test_ctrl_c_ends_the_load_with_what_was_seen(tmp_path: Path) -> None:
    """The table and the files of what was there; nothing of a rate that was still to come."""
    words = ("--rate", "50,60", "--seconds", "600", "--json", str(tmp_path / "j"), "--max-tokens", "1")
    with serving(Pace(0.0, 0.0)) as (server, url):
        command = [sys.executable, "-m", "service.bench", url, *words]
        process = subprocess.Popen(command, cwd=ROOT, env=with_paths(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while len(server.asked) < 20:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, errors = (each.decode() for each in process.communicate(timeout=30))
    assert process.returncode == 0 and "Stopped; what follows" in errors
    (told,) = json.loads((tmp_path / "j").read_text())["rates"]
    assert told["rate"] == 50 and told["answered"] >= 10 and "answers a second" in output
