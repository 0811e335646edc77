"""Clouds that are killed, frozen, drained, restarted or cut off: every client sees one uninterrupted, identical stream.

Real processes and the demo model, greedy. An answer is compared with the one that nothing disturbed, and that one with
transformers.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoints import DEMO
from fault_proxy import FaultProxy
from faults.judging import GOES_ON
from faults.notes import note
from freezing_proxy import FreezingProxy
from installation import Installation, wait_until
from oracle import oracle_tokens
from processes import free_port, stop_all_threads
from samples import sample
from streamed import Answer, stream_answer

from device_agent.answering.tokenizer import Tokenizer
from wire.limits import DEAD_AFTER_S, HELLO_WITHIN_S
from wire.request_messages import ChatTurn

pytestmark = pytest.mark.system

TOKENS = 96
QUESTION = "Tell me a story about a fox."
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
    "max_tokens": TOKENS,
    "ignore_eos": True,
}
LONGER = {**ASK, "max_tokens": 220}
"""For what takes a while beside the answer, or has to come before its end though the client reads late."""
LONG_PROMPT = {
    **ASK,
    "max_tokens": 24,
    "messages": [{"role": "user", "content": "The fox and the hen went home. " * 180}],
}
"""Some 1500 tokens: dozens of chunks of 32."""
MIDDLE_BYTES = 300_000
"""Of that prompt's rows on their way to the cloud, packed: half of them, or a little less."""
WAIT_S = 30.0
SMALL_STEPS = ("--step-rows", "64", "--threads", "1")
SMALL_CHUNKS = ("--chunk", "32", "--threads", "1")


class Pair:
    """An installation with two clouds, each of which may be killed and started again."""

    def __init__(self, installation: Installation, way: FreezingProxy) -> None:
        self.installation = installation
        self.way = way
        """The device's to the first cloud, which serves as long as it is there."""

    def kill(self, *ports: int) -> None:
        """kill -9, until they are gone."""
        for port in ports:
            self.installation.cloud_at(port).end(signal.SIGKILL)

    def signal(self, port: int, number: int) -> None:
        """Send a signal without waiting."""
        process = self.installation.cloud_at(port).process
        assert process is not None
        process.send_signal(number)

    def stop(self, port: int) -> None:
        """Have a server stand still; returns once it does."""
        process = self.installation.cloud_at(port).process
        assert process is not None
        stop_all_threads(process.pid)

    def mend(self) -> None:
        """Start what is dead, and wait until the device is connected to both."""
        self.way.thaw()
        for port in self.installation.cloud_ports:
            process = self.installation.cloud_at(port).process
            if process is not None and process.poll() is not None:
                self.installation.start_cloud_at(port)
        wait_until(self.installation.all_connected)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Gateway, device, two clouds; whoever breaks a cloud mends it."""
    folder = tmp_path_factory.mktemp("pair")
    settings: dict[str, Any] = {"device_settings": SMALL_CHUNKS, "cloud_settings": SMALL_STEPS}
    port = free_port()
    with FreezingProxy(port) as way:
        links: dict[str, Any] = {"cloud_port": port, "cloud_url": f"ws://127.0.0.1:{way.port}", "with_standby": True}
        with Installation(folder, forked=True, **links, **settings) as installation:
            yield Pair(installation, way)


@pytest.fixture(scope="module")
def unbroken(pair: Pair) -> Callable[[dict[str, Any]], Answer]:
    """What a request is answered when nothing happens."""
    known: dict[str, Answer] = {}

    def answer(body: dict[str, Any]) -> Answer:
        if str(body) not in known:
            pair.mend()
            known[str(body)] = stream_answer(pair.installation.base, body)
        assert known[str(body)].done and known[str(body)].tokens == body["max_tokens"]
        return known[str(body)]

    return answer


@contextmanager
def in_background(base: str, body: dict[str, Any], seen: Callable[[int], None] = lambda count: None) -> Iterator[Any]:
    """An answer that is streamed by another thread; a future."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(stream_answer, base, body, seen)


@asynccontextmanager
async def behind_proxy(folder: Path) -> AsyncIterator[tuple[Installation, FaultProxy]]:
    """An installation whose device reaches its only cloud through a network that can be broken."""
    port = free_port()
    async with FaultProxy(f"ws://127.0.0.1:{port}") as proxy:
        installation = Installation(folder, cloud_port=port, cloud_url=proxy.url, forked=True)
        await asyncio.to_thread(installation.__enter__)
        try:
            yield installation, proxy
        finally:
            await asyncio.to_thread(installation.__exit__)


def test_the_unbroken_answer_is_transformers(unbroken: Callable[[dict[str, Any]], Answer]) -> None:
    """The answer that all others are compared with is what transformers generates."""
    tokenizer = Tokenizer.load(DEMO, ())
    prompt = tokenizer.chat([ChatTurn("user", QUESTION)])
    assert unbroken(ASK).text == tokenizer.decode(oracle_tokens(DEMO, tuple(prompt), TOKENS))


@pytest.mark.parametrize("position", sample([1, 2, 60], "1 60"))
def test_killed_while_decoding(position: int, pair: Pair, unbroken: Callable[[dict[str, Any]], Answer]) -> None:
    """kill -9 of the serving cloud when the client has so many tokens, a standby there: the stream goes on."""
    expected = unbroken(LONGER)
    pair.mend()
    killed: list[int] = []

    def seen(count: int) -> None:
        if count == position:
            killed.extend(pair.installation.serving())
            pair.kill(*killed)

    answer = stream_answer(pair.installation.base, LONGER, seen)
    assert len(killed) == 1
    assert answer.outcome == expected.outcome
    noted(f"kill -9 of the cloud that serves, at token {position}", answer)


@pytest.mark.parametrize("killed", [0, 1])
def test_killed_at_position_0(killed: int, pair: Pair, unbroken: Callable[[dict[str, Any]], Answer]) -> None:
    """A cloud that dies with rows received and none computed: whichever the device has chosen, one of these is it."""
    expected = unbroken(ASK)
    pair.mend()
    ports = pair.installation.cloud_ports
    for port in ports:
        pair.stop(port)
    with in_background(pair.installation.base, ASK) as answer:
        time.sleep(0.5)
        assert not answer.done()
        pair.kill(ports[killed])
        pair.signal(ports[1 - killed], signal.SIGCONT)
        assert answer.result().outcome == expected.outcome
        noted("kill -9 with rows received and none computed", answer.result())


def test_killed_in_the_middle_of_a_prefill(pair: Pair) -> None:
    """A cloud that dies with some chunks of a prompt there and the others not: no byte of these gets through."""
    expected = answer_of(LONG_PROMPT)  # Not asked before: a conversation that is known already has no prefill.
    pair.mend()
    installation = pair.installation
    pair.way.freeze_after(MIDDLE_BYTES)
    with in_background(installation.base, LONG_PROMPT) as answer:
        assert pair.way.frozen.wait(WAIT_S)
        wait_until(lambda: position_in(installation, installation.cloud_port) > 0)
        pair.kill(installation.cloud_port)
        pair.way.cut()
        assert answer.result().done and answer.result().text == expected
        noted("kill -9 in the middle of a prompt", answer.result())


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", ["there", "there, later", "elsewhere"])
def test_killed_behind_a_network_that_stands_still(goes_on: str, pair: Pair) -> None:
    """The same, and no end of the connection is ever seen: the device knows by the silence, and dials again, where
    connections may be taken at first and go nowhere."""
    messages = [{"role": "user", "content": f"They went home, {goes_on}. " * 170}]
    body = {**LONG_PROMPT, "messages": messages}
    expected = answer_of(body)
    pair.mend()
    installation, way = pair.installation, pair.way
    if goes_on != "elsewhere":
        pair.kill(installation.standby_port)
    way.freeze_after(MIDDLE_BYTES)
    with in_background(installation.base, body) as answer:
        assert way.frozen.wait(WAIT_S)
        began = time.monotonic()
        way.swallows = goes_on != "there"
        pair.kill(installation.cloud_port)
        if goes_on != "elsewhere":
            installation.start_cloud().wait_ready()
        if goes_on == "there, later":
            before = way.connections
            wait_until(lambda: way.connections > before + 1)
            way.swallows = False
        assert answer.result().done and answer.result().text == expected
        assert time.monotonic() - began < 2 * DEAD_AFTER_S + (2 * HELLO_WITHIN_S if goes_on == "there, later" else 0)
        noted("kill -9 behind a network that stands still, in the middle of a prompt", answer.result())
    way.swallows = False


def answer_of(body: dict[str, Any]) -> str:
    """What transformers answers."""
    tokenizer = Tokenizer.load(DEMO, ())
    prompt = tokenizer.chat([ChatTurn("user", body["messages"][0]["content"])])
    return tokenizer.decode(oracle_tokens(DEMO, tuple(prompt), body["max_tokens"]))


def noted(injected: str, answer: Answer) -> None:
    """For the table of faults: what has been found to be the same as ever."""
    note("plain", injected, GOES_ON, compared=answer.tokens)


def position_in(installation: Installation, port: int) -> int:
    """How far the sessions that a cloud runs have come."""
    return max((each["position"] for each in installation.open_sessions(port)), default=0)


def test_killed_and_no_standby(pair: Pair, unbroken: Callable[[dict[str, Any]], Answer]) -> None:
    """The only cloud there is dies and another process is started within seconds: the stream waits for it."""
    expected = unbroken(ASK)
    pair.mend()
    pair.kill(pair.installation.standby_port)

    def seen(count: int) -> None:
        if count == 30:
            pair.kill(pair.installation.cloud_port)
            pair.installation.start_cloud()

    answer = stream_answer(pair.installation.base, ASK, seen)
    assert answer.outcome == expected.outcome
    noted("kill -9 of the only cloud, another started", answer)


@pytest.mark.slow
@pytest.mark.parametrize("asleep_s", [0.0, 20.0])
def test_a_zombie_changes_nothing(asleep_s: float, pair: Pair, unbroken: Callable[[dict[str, Any]], Answer]) -> None:
    """A cloud that is stopped, given up, and awake again with late results while the stream goes on elsewhere."""
    body = {**ASK, "max_tokens": 1500} if asleep_s else LONGER  # It must be going on when the cloud wakes.
    expected = unbroken(body)
    pair.mend()
    installation = pair.installation
    stopped: list[int] = []
    asleep = threading.Event()

    def seen(count: int) -> None:
        if count == 30:
            stopped.extend(installation.serving())
            pair.stop(stopped[0])
            asleep.set()

    with in_background(installation.base, body, seen) as answer:
        assert asleep.wait(60)
        began = time.monotonic()
        (zombie,) = stopped
        (other,) = set(installation.cloud_ports) - {zombie}
        try:
            wait_until(lambda: bool(installation.open_sessions(other)))
            time.sleep(max(0.0, began + asleep_s - time.monotonic()))
        finally:
            pair.signal(zombie, signal.SIGCONT)
        assert answer.result().outcome == expected.outcome
        noted(f"SIGSTOP of the cloud that serves, SIGCONT later ({asleep_s:g} s)", answer.result())
    wait_until(lambda: not installation.open_sessions(zombie))


def test_a_drained_cloud_hands_over(pair: Pair, unbroken: Callable[[dict[str, Any]], Answer]) -> None:
    """POST /drain under four streams: they go on elsewhere, and the drained process ends with status 0."""
    expected = unbroken(LONGER)
    pair.mend()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(stream_answer, pair.installation.base, LONGER) for _ in range(4)]
        wait_until(
            lambda: sum(len(pair.installation.open_sessions(port)) for port in pair.installation.cloud_ports) == 4
        )
        drained = pair.installation.serving()[0]
        assert pair.installation.operate("POST", "/drain", drained) == {"sessions_left": 0}
        assert pair.installation.cloud_at(drained).end() == 0
        for answer in answers:
            assert answer.result().outcome == expected.outcome
            noted("POST /drain", answer.result())


@pytest.mark.slow
def test_a_rolling_restart_fails_nothing(pair: Pair, unbroken: Callable[[dict[str, Any]], Answer]) -> None:
    """Both clouds restarted three times, one after the other, under clients that ask all the time: nothing is lost."""
    expected = unbroken(ASK)
    pair.mend()
    over = threading.Event()

    def client() -> list[Answer]:
        answers = []
        while not over.is_set():
            answers.append(stream_answer(pair.installation.base, ASK))
        return answers

    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(client) for _ in range(3)]
        try:
            for port in 3 * pair.installation.cloud_ports:
                assert pair.installation.cloud_at(port).end() == 0
                pair.mend()
        finally:
            over.set()
        answers = [answer for each in clients for answer in each.result()]
    assert len(answers) >= 6
    assert {answer.text for answer in answers} == {expected.text}
    assert [answer for answer in answers if answer.outcome != expected.outcome] == []


async def test_a_cut_connection_is_resumed_not_replayed(tmp_path: Path) -> None:
    """The network ends the connection and the cloud keeps the session: nothing is computed twice."""
    async with behind_proxy(tmp_path) as (installation, proxy):
        loop = asyncio.get_running_loop()
        expected = await asyncio.to_thread(stream_answer, installation.base, LONGER)

        def seen(count: int) -> None:
            if count in (1, 30, 60):
                loop.call_soon_threadsafe(proxy.cut)

        answer = await asyncio.to_thread(stream_answer, installation.base, LONGER, seen)
        assert answer.outcome == expected.outcome and answer.done
        noted("its connection ended three times", answer)
        resumed = await asyncio.to_thread(installation.cloud_metric, "num_resumes_total")
        replayed = await asyncio.to_thread(installation.cloud_metric, "num_replays_total")
        assert (resumed, replayed) == (3, 0)
        assert proxy.connections == 4


@pytest.mark.slow
async def test_a_frozen_network_is_resumed(tmp_path: Path) -> None:
    """Nothing comes through for 20 s, longer than either side waits for the other: both dial and take up again."""
    async with behind_proxy(tmp_path) as (installation, proxy):
        loop = asyncio.get_running_loop()
        expected = await asyncio.to_thread(stream_answer, installation.base, ASK)
        frozen = asyncio.Event()

        def seen(count: int) -> None:
            if count == 30:
                loop.call_soon_threadsafe(proxy.freeze)
                loop.call_soon_threadsafe(frozen.set)

        answer = asyncio.create_task(asyncio.to_thread(stream_answer, installation.base, ASK, seen))
        await frozen.wait()
        await asyncio.sleep(20)
        proxy.thaw()
        assert (await answer).outcome == expected.outcome
        noted("nothing forwarded for 20 s", answer.result())
        wait = asyncio.to_thread(wait_until, lambda: not installation.open_sessions(installation.cloud_port))
        await asyncio.wait_for(wait, 120)


@pytest.mark.slow
@pytest.mark.parametrize("position", range(3, TOKENS - 30, 13))
def test_killed_at_many_positions(position: int, pair: Pair, unbroken: Callable[[dict[str, Any]], Answer]) -> None:
    """kill -9 at every thirteenth position."""
    test_killed_while_decoding(position, pair, unbroken)
