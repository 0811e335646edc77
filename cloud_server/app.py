"""The cloud server's doors: one websocket for devices, and /live, /health, /state, /metrics, /drain for operators.

Nothing textual passes here: a device sends numbers, lengths and hidden states.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from fastapi import Depends, FastAPI, HTTPException, Request, WebSocket, WebSocketException
from fastapi.requests import HTTPConnection
from fastapi.responses import JSONResponse, Response

from cloud_server.engine.entries import SessionState
from cloud_server.metrics import CONTENT_TYPE
from cloud_server.server import CloudServer
from service.addresses import is_foreign, is_loopback
from service.secret_files import current
from service.traces import OWN_TRACES
from wire.hello import same_secret


def create_app(server: CloudServer) -> FastAPI:
    """The ASGI application of a cloud server."""

    tasks: list[asyncio.Task[None]] = []

    def failure() -> BaseException | None:
        """Why this server cannot go on, if so."""
        return next((each.exception() for each in tasks if each.done() and not each.cancelled()), None)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks.extend(asyncio.create_task(work) for work in (server.engine.run(), server.keep_looking()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    config = server.config
    on_loopback, hosts = is_loopback(config.host), config.hosts

    def check_host(connection: HTTPConnection) -> None:
        """At every door: not by a name that is foreign here, which is how a page would reach a local port."""
        if is_foreign(connection.headers.get("host"), on_loopback=on_loopback, allowed=hosts):
            if connection.scope["type"] == "websocket":
                raise WebSocketException(1008)
            raise HTTPException(403, "this server does not answer to the name in the Host header; see --allowed-hosts")

    app = FastAPI(
        title="Trilby cloud server",
        openapi_url=None,
        lifespan=lifespan,
        dependencies=[Depends(check_host)],
        telemetry=OWN_TRACES,
    )
    app.state.failure = failure

    def check_operator(request: Request) -> None:
        """Only somebody with the operator token, and never a page in a browser. Devices' own token is no operator's."""
        token = current(config.operator_token)
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if "origin" in request.headers:
            raise HTTPException(403, "this is not for web pages")
        if not token:
            raise HTTPException(403, "only an operator may do this: start the cloud with --operator-token "
                                "(TRILBY_OPERATOR_TOKEN), or send its process SIGTERM to drain it")  # fmt: skip
        if not same_secret(given, token):
            raise HTTPException(
                401, "this needs the operator token as Bearer credential", {"WWW-Authenticate": "Bearer"}
            )

    def check_reader(request: Request) -> None:
        """An operator; or anybody but a web page where no secrets are set, as on one's own machine."""
        if config.operator_token or config.is_guarded or "origin" in request.headers:
            check_operator(request)

    @app.websocket("/device")
    async def device(websocket: WebSocket) -> None:
        await server.serve_device(websocket)

    @app.get("/live")
    async def live() -> JSONResponse:
        """Whether to leave this process alone: also while it drains, and while lost stages are being begun anew."""
        alive = failure() is None
        return JSONResponse({"status": "alive" if alive else "failed"}, 200 if alive else 503)

    @app.get("/health")
    async def health() -> JSONResponse:
        """Whether sessions can be opened. ``starting``: layers are loaded, or stages that were lost begun anew."""
        status = "ok" if server.engine.alive else "starting"
        if failure() is not None:
            status = "failed"
        elif server.engine.ledger.draining:
            status = "draining"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @app.get("/state", dependencies=[Depends(check_reader)])
    async def state() -> JSONResponse:
        return JSONResponse(state_of(server))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(measured(server), media_type=CONTENT_TYPE)

    @app.post("/drain", dependencies=[Depends(check_operator)])
    async def drain() -> JSONResponse:
        return JSONResponse({"sessions_left": await server.drain()})

    return app


def state_of(server: CloudServer) -> dict[str, object]:
    """Return what /state shows: names, counts and times, nothing of any content."""
    engine, ledger = server.engine, server.engine.ledger
    identity, load, pages = engine.identity, engine.pace.load, ledger.pages
    return {
        "model": identity.model,
        "digest": identity.digest,
        "layers": [identity.first_layer, identity.last_layer],
        "dtype": identity.dtype,
        **server.about,
        "draining": ledger.draining,
        "uptime_s": round(monotonic() - server.began, 1),
        "step_ms": round(load.eta * 1e3, 3),
        "step_rows": round(load.mu, 1),
        "expected_step_ms": {str(rows): round(load.g(rows) * 1e3, 3) for rows in (1, 8, 64, 512)},
        "stages": engine.depth,
        "waiting_rows": engine.sessions.scheduler.waiting_rows,
        "pages": {"used": pages.used, "free": pages.free, "all": pages.count, "positions": pages.page_positions},
        "devices": [
            {
                "connection": link.connection,
                "name": link.name,
                "rtt_ms": None if link.stream.rtt_s is None else round(link.stream.rtt_s * 1e3, 2),
                "received_bytes": link.stream.received_bytes,
                "sent_bytes": link.stream.sent_bytes,
                "sessions": ledger.of_device(link.connection),
                "up_bytes_s": link.measured.up_bytes_s,
                "down_bytes_s": link.measured.down_bytes_s,
            }
            for link in server.links.values()
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


def measured(server: CloudServer) -> bytes:
    """Return the metrics as text, brought up to date."""
    metrics, ledger, scheduler = server.engine.metrics, server.engine.ledger, server.engine.sessions.scheduler
    for link in server.links.values():
        link.count_bytes()
    running = ledger.count(SessionState.OPEN)
    metrics.running.set(running)
    metrics.parked.set(len(ledger.entries) - running)
    metrics.devices.set(len(server.links))
    metrics.waiting.set(scheduler.waiting_sessions)
    metrics.waiting_rows.set(scheduler.waiting_rows)
    metrics.kv_usage.set(ledger.pages_open / ledger.pages.count)
    return metrics.text()
