"""The cloud server's doors: one websocket for devices, and /health, /state, /metrics, /drain for operators.

Nothing textual passes here: a device sends numbers, lengths and hidden states.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple
from time import monotonic, perf_counter

import structlog
from fastapi import Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import JSONResponse, Response

from cloud_server.advice import Conditions
from cloud_server.config import CloudConfig
from cloud_server.device_link import TURN_S, DeviceLink
from cloud_server.engine import Engine
from cloud_server.ledger import State
from cloud_server.metrics import CONTENT_TYPE, CloudMetrics
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.hello import CloudIdentity, check_device, same_secret
from wire.limits import CLOUD_LINK, ITEM_BYTES
from wire.messages import CloudWelcome, DeviceHello, Drain
from wire.stream import accept

log = structlog.get_logger()

MAX_GREETING = 64
"""Connections that have not said hello yet; more are turned away, so that idle sockets cannot crowd devices out."""


MAX_DEVICES = 1024
"""Devices connected at once; more are told to come back later."""

RETRY_AFTER_S = 5.0
"""When a device that found no place should come back."""


class CloudServer:
    """The state behind the doors: connected devices and the engine they share.

    Args:
        about: what /state says of the layers beside their identity.
    """

    def __init__(
        self,
        config: CloudConfig,
        identity: CloudIdentity,
        engine: Engine,
        metrics: CloudMetrics,
        about: dict[str, object],
    ) -> None:
        self.config = config
        self.identity = identity
        self.metrics = metrics
        self.engine = engine
        self.links: dict[int, DeviceLink] = {}
        self._about = about
        self._greeting = 0
        self._connections = 0
        self._tokens: dict[str, int] = {}
        self._began = monotonic()
        self._open_sessions: int | None = None
        self._swept = asyncio.Event()
        engine.swept = self._swept.set

    async def serve_device(self, websocket: WebSocket) -> None:
        """One device, from its hello to the end of its connection."""
        if "origin" in websocket.headers or self._greeting >= MAX_GREETING:
            await websocket.close(1008)  # A browser page has no business here, nor has a crowd that says nothing.
            return
        self._connections += 1
        connection = self._connections
        connected = False
        try:
            async with accept(websocket, Role.CLOUD, CLOUD_LINK) as stream:
                self._greeting += 1
                try:
                    hello = (await stream.receive()).message
                finally:
                    self._greeting -= 1
                assert isinstance(hello, DeviceHello)
                refusal = self._refusal(hello)
                if refusal is not None:
                    raise refusal
                token = secrets.token_urlsafe(16)
                self._tokens[token] = connection
                stream.post(self._welcome(token))
                link = DeviceLink(
                    connection,
                    hello.name,
                    stream,
                    self.engine,
                    self.identity,
                    self.metrics,
                    self._conditions,
                    lambda token: self._tokens.get(token),
                )
                self.links[connection] = link
                connected = True
                log.info("device connected", device=hello.name, connection=connection)
                try:
                    await link.serve()
                finally:
                    del self.links[connection]
                    self._count_bytes(link)
        except ConnectionFailed as failure:
            self.metrics.refused.labels(failure.code.value).inc()
            # The code alone: the text may be the device's own. Who never was a device could flood the log.
            tell = log.info if connected else log.debug
            tell("device gone", connection=connection, code=failure.code.value)

    async def drain(self) -> int:
        """Refuse new sessions, tell the devices, wait for the open ones; returns how many were left at the limit."""
        self.engine.ledger.draining = True
        for link in list(self.links.values()):
            with suppress(ConnectionFailed):
                link.stream.post(Drain(self.config.drain_s))
        self.engine.close_kept()
        await self.engine.emptied(self.config.drain_s)
        return self._running()

    def state(self) -> dict[str, object]:
        """What /state shows: names, counts and times, nothing of any content."""
        identity, ledger = self.identity, self.engine.ledger
        pages, load = ledger.pages, self.engine.load
        cost = load.costs.now
        return {
            "model": identity.model,
            "digest": identity.digest,
            "layers": [identity.first_layer, identity.last_layer],
            "dtype": identity.dtype,
            **self._about,
            "draining": ledger.draining,
            "uptime_s": round(monotonic() - self._began, 1),
            "step_ms": round(load.eta * 1e3, 3),
            "step_rows": round(load.mu, 1),
            "expected_step_ms": {str(rows): round(load.g(rows) * 1e3, 3) for rows in (1, 8, 64, 512)},
            "step_cost_us": {
                name: round(seconds * 1e6, 4)
                for name, seconds in zip(("base", "row", "pair", "read"), astuple(cost), strict=True)
            },
            "stages": self.engine.depth,
            "waiting_rows": self.engine.waiting_rows,
            "pages": {"used": pages.used, "free": pages.free, "all": pages.count, "positions": pages.page_positions},
            "devices": [
                {
                    "connection": link.connection,
                    "name": link.name,
                    "rtt_ms": None if link.stream.rtt_s is None else round(link.stream.rtt_s * 1e3, 2),
                    "received_bytes": link.stream.received_bytes,
                    "sent_bytes": link.stream.sent_bytes,
                    "sessions": ledger.of_device(link.connection),
                    "up_bytes_s": link.advising.link.up_bytes_s,
                    "down_bytes_s": link.advising.link.down_bytes_s,
                }
                for link in self.links.values()
            ],
            "sessions": [
                {
                    "connection": key[0],
                    "session": key[1],
                    "state": entry.state.value,
                    "position": entry.position,
                    "pages": pages.held(key),
                }
                for key, entry in ledger.entries.items()
            ],
        }

    def measured(self) -> bytes:
        """The metrics, brought up to date."""
        ledger = self.engine.ledger
        for link in self.links.values():
            self._count_bytes(link)
        self.metrics.running.set(self._running())
        self.metrics.parked.set(len(ledger.entries) - self._running())
        self.metrics.devices.set(len(self.links))
        self.metrics.waiting.set(self.engine.waiting_sessions)
        self.metrics.waiting_rows.set(self.engine.waiting_rows)
        self.metrics.kv_usage.set(ledger.pages.used / ledger.pages.count)
        return self.metrics.text()

    def _count_bytes(self, link: DeviceLink) -> None:
        received, sent = link.take_bytes()
        self.metrics.received_bytes.inc(received)
        self.metrics.sent_bytes.inc(sent)

    def _refusal(self, hello: DeviceHello) -> ConnectionFailed | None:
        if self.engine.ledger.draining:
            return ConnectionFailed(Code.DRAINING, "the server is stopping", retry_after_s=1.0)
        refusal = check_device(self.identity, hello)
        if refusal is None and len(self.links) >= MAX_DEVICES:
            text = f"{MAX_DEVICES} devices are connected already"
            refusal = ConnectionFailed(Code.OVERLOADED, text, retry_after_s=RETRY_AFTER_S)
        return refusal

    def _welcome(self, token: str) -> CloudWelcome:
        limits = self.engine.ledger.limits
        return CloudWelcome(
            name="cloud",
            window_rows=limits.window_rows,
            max_rows=limits.rows,
            max_positions=limits.positions,
            max_sessions=limits.device_sessions,
            resume_token=token,
            resume_s=limits.resume_s,
        )

    def _conditions(self, up_bytes_s: float | None) -> Conditions:
        identity, load = self.identity, self.engine.load
        cost = load.costs.now
        running = self._running() if self._open_sessions is None else self._open_sessions
        others = running > 1
        return Conditions(
            # With nobody else there, no batch is in progress that a chunk would have to wait for.
            mu=load.mu if others else 0.0,
            g=cost.beside(load.reads) if others else cost,
            pair_s=cost.pair_s,
            pipeline=self.engine.depth,
            row_bytes=identity.hidden_size * ITEM_BYTES[identity.dtype],
            up_bytes_s=up_bytes_s,
            cap_rows=self.engine.ledger.limits.rows,
        )

    def _running(self) -> int:
        return sum(entry.state is State.OPEN for entry in self.engine.ledger.entries.values())

    async def look_again(self) -> None:
        """Advise anew after every sweep, a little at a time, and forget the tokens of connections that left nothing."""
        while True:
            await self._swept.wait()
            self._swept.clear()
            self._forget_tokens()
            began = perf_counter()
            self._open_sessions = self._running()  # Counted once for all devices.
            for link in list(self.links.values()):
                for _ in link.look_again():
                    if perf_counter() - began > TURN_S:
                        await asyncio.sleep(0)
                        began = perf_counter()
            self._open_sessions = None

    def _forget_tokens(self) -> None:
        left = {connection for connection, _ in self.engine.ledger.entries} | set(self.links)
        self._tokens = {token: each for token, each in self._tokens.items() if each in left}


def create_app(server: CloudServer) -> FastAPI:
    """The ASGI application of a cloud server."""

    tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks.extend(asyncio.create_task(work) for work in (server.engine.run(), server.look_again()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(title="Trilby cloud server", openapi_url=None, lifespan=lifespan)

    def check_operator(request: Request) -> None:
        """Only somebody with the token, if there is one, and never a page in a browser."""
        token = server.config.cloud_token
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if "origin" in request.headers:
            raise HTTPException(403, "this is not for web pages")
        if token and not same_secret(given, token):
            raise HTTPException(401, "this needs the cloud token as Bearer credential", {"WWW-Authenticate": "Bearer"})

    @app.websocket("/device")
    async def device(websocket: WebSocket) -> None:
        await server.serve_device(websocket)

    @app.get("/health")
    async def health() -> JSONResponse:
        alive = server.engine.alive and not any(task.done() for task in tasks)
        status = "draining" if server.engine.ledger.draining else "ok" if alive else "failed"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @app.get("/state", dependencies=[Depends(check_operator)])
    async def state() -> JSONResponse:
        return JSONResponse(server.state())

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.measured(), media_type=CONTENT_TYPE)

    @app.post("/drain", dependencies=[Depends(check_operator)])
    async def drain() -> JSONResponse:
        return JSONResponse({"sessions_left": await server.drain()})

    return app
