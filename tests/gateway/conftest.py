"""A real gateway on loopback, and a scripted agent that speaks the real protocol to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from agents_here import Served
from quick_server import QuickServer, eventually

from gateway.app import create_app
from gateway.config import GatewayConfig
from service.lifecycle import listening
from service.traces import NO_TRACES, Traces
from wire.connection import Role
from wire.decision_messages import Decide
from wire.errors import ConnectionFailed
from wire.limits import GATEWAY_LINK, MAX_FRAME_BYTES
from wire.message import Drain
from wire.messages import AnyMessage
from wire.observed_messages import Observe
from wire.reading_messages import Read
from wire.request_messages import (
    Accepted,
    AgentHello,
    AgentState,
    Alternative,
    Cancel,
    Delta,
    Done,
    Finished,
    GatewayWelcome,
    Generate,
    ServedModel,
    TokenLogprob,
)
from wire.stream import Stream, dial
from wire.text_messages import Tokenize

OPERATOR = "operators-only"
"""The operator token of the gateways here that have one."""

MODEL = ServedModel("demo/model", 4096, 1_700_000_000, scores=True, decides=True)

Script = Callable[["ScriptedAgent", Any], Awaitable[None]]


class RunningGateway:
    """Where a gateway listens, and its insides."""

    def __init__(self, app: Any, port: int) -> None:
        self.app = app
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.ws_url = f"ws://127.0.0.1:{port}"
        # Loading certificates takes 20 ms.
        self.http = httpx.AsyncClient(base_url=self.url, timeout=20.0, trust_env=False, verify=False)

    @property
    def dispatcher(self) -> Any:
        return self.app.state.desk.dispatcher

    @property
    def roster(self) -> Any:
        return self.app.state.desk.roster

    async def drain(self) -> httpx.Response:
        """Drain it as an operator does."""
        return await self.http.post("/drain", headers={"authorization": f"Bearer {OPERATOR}"})

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        await eventually(holds)


@asynccontextmanager
async def _serving(
    config: GatewayConfig, port: int = 0, traces: Traces = NO_TRACES, **uvicorn_settings: Any
) -> AsyncIterator[RunningGateway]:
    app = create_app(config, traces)
    listener = listening("127.0.0.1", port)
    settings: dict[str, Any] = {"log_config": None, "access_log": False, "timeout_graceful_shutdown": 2}
    settings |= {"ws": "websockets-sansio", "ws_max_size": MAX_FRAME_BYTES, "ws_max_queue": 4}
    server = QuickServer(uvicorn.Config(app, ws_per_message_deflate=False, **settings | uvicorn_settings))
    task = asyncio.create_task(server._serve([listener]))
    gateway = RunningGateway(app, listener.getsockname()[1])
    await gateway.until(lambda: server.started)
    try:
        yield gateway
    finally:
        await gateway.http.aclose()
        server.stop.set()
        await task
        listener.close()
    # Whatever happened, nothing of it is left.
    assert gateway.roster.running == 0
    assert len(gateway.roster.waiting) == 0


async def answer(agent: ScriptedAgent, asked: Generate) -> None:
    """The default script: "Hello world" in three deltas for every choice."""
    agent.post(Accepted(asked.request, 5))
    for index in range(asked.n):
        if asked.echo:
            agent.post(Delta(asked.request, index, str(asked.prompt), 0))
        for text in ("Hel", "lo wor", "", "ld"):
            logprobs = None if asked.logprobs is None else [logprob(text or "?", asked.logprobs)]
            agent.post(Delta(asked.request, index, text, 1, logprobs))
            await asyncio.sleep(0)
        agent.post(Finished(asked.request, index, "stop" if index % 2 == 0 else "length"))
    agent.post(Done(asked.request, 5, 4 * asked.n))


async def hang(agent: ScriptedAgent, asked: Generate) -> None:
    """Accept, say one word, and nothing more."""
    agent.post(Accepted(asked.request, 5))
    agent.post(Delta(asked.request, 0, "Well", 1))


async def silent(agent: ScriptedAgent, asked: Generate) -> None:
    """Do not even accept."""


def logprob(text: str, alternatives: int) -> TokenLogprob:
    """A token with this many alternatives, one of them impossible."""
    tops = [Alternative(f"{text}{at}", float("-inf") if at else -0.5, f"{text}{at}".encode()) for at in
            range(alternatives)]  # fmt: skip
    return TokenLogprob(Alternative(text, -0.25, text.encode()), tops)


class ScriptedAgent:
    """An agent that runs a script for each request.

    Attributes:
        asked: every Generate received. cancelled: the numbers of every Cancel. drained: a Drain was received. observes:
        how often it is to say what it does, each time it is told.
    """

    def __init__(self, stream: Stream, script: Script) -> None:
        self.asked: list[Any] = []
        self.cancelled: list[int] = []
        self.drained = False
        self.observes: list[int] = []
        self.script = script
        self._stream = stream
        self._tasks: set[asyncio.Future[None]] = set()

    def post(self, message: AnyMessage) -> None:
        with suppress(ConnectionFailed):
            self._stream.post(message)

    async def listen(self) -> None:
        with suppress(ConnectionFailed):
            while True:
                self._hear((await self._stream.receive()).message)

    async def cut(self) -> None:
        """Break the connection off."""
        await self._stream.close()

    def state(self, running: int = 0, cloud: bool | None = None) -> None:
        self.post(AgentState(running, cloud))

    def _hear(self, message: AnyMessage) -> None:
        if isinstance(message, (Generate, Read, Tokenize, Decide)):
            self.asked.append(message)
            task = asyncio.ensure_future(self.script(self, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(message, Cancel):
            self.cancelled.append(message.request)
        elif isinstance(message, Observe):
            self.observes.append(message.every_ms)
        elif isinstance(message, Drain):
            self.drained = True

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def _connected(
    gateway: RunningGateway,
    script: Script = answer,
    *,
    models: tuple[ServedModel, ...] = (MODEL,),
    capacity: int = 8,
    name: str = "scripted",
    credential: str = "",
    observable: bool = False,
) -> AsyncIterator[ScriptedAgent]:
    async with dial(f"{gateway.ws_url}/device", Role.AGENT, GATEWAY_LINK) as stream:
        stream.post(AgentHello(name, credential, list(models), capacity, observable=observable))
        assert isinstance((await stream.receive()).message, GatewayWelcome)
        agent = ScriptedAgent(stream, script)
        listening = asyncio.create_task(agent.listen())
        try:
            yield agent
        finally:
            agent.stop()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


class Scripts:
    """The scripts and pieces tests build their own from."""

    answer = staticmethod(answer)
    hang = staticmethod(hang)
    silent = staticmethod(silent)
    logprob = staticmethod(logprob)


@pytest.fixture
def serving() -> Any:
    """``async with serving(GatewayConfig(...)) as gateway``."""
    return _serving


@pytest.fixture
def served() -> Served:
    """``async with served(folder) as http``: a gateway, and an agent that serves the model of the folder as "m"."""
    from device_agent.build import build  # With all of torch, which most tests of the gateway do without.
    from device_agent.config import DeviceConfig

    @asynccontextmanager
    async def served_by(folder: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        async with _serving(GatewayConfig()) as gateway:
            usual: dict[str, Any] = {"served_model_name": ("m",), "mode": "local", "device": "cpu"}
            device = build(DeviceConfig(model=str(folder), gateway=gateway.ws_url, **{**usual, **settings}))
            running = asyncio.create_task(device.agent.run())
            try:
                await gateway.until(lambda: gateway.roster.links)
                yield gateway.http
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                device.stop()

    return served_by


@pytest.fixture
def connected() -> Any:
    """``async with connected(gateway, script) as agent``."""
    return _connected


@pytest.fixture
def scripts() -> Any:
    return Scripts


@pytest.fixture
async def gateway(serving: Any) -> Any:
    """A gateway with everything as it comes, but quick keep-alives and an operator."""
    async with serving(GatewayConfig(keep_alive_s=0.1, operator_token=OPERATOR)) as running:
        yield running


@pytest.fixture
async def agent(gateway: Any, connected: Any) -> Any:
    """An agent that answers "Hello world"."""
    async with connected(gateway) as scripted:
        yield scripted


@pytest.fixture
def chat() -> Any:
    """A chat request body."""
    return {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]}
