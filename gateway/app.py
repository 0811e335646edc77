"""The gateway's application: every endpoint, and what holds for all of them.

POST /v1/chat/completions    POST /v1/completions    POST /v1/embeddings    POST /v1/classify
POST /v1/decisions
POST /v1/tokenize    POST /v1/detokenize    POST /v1/chat/completions/input_tokens
POST /v1/responses    GET, DELETE /v1/responses/{id}, …    POST /v1/messages    POST /v1/messages/count_tokens
GET /v1/models    GET /v1/models/{id}    websocket /v1/stream
the same without /v1
GET /live    GET /health    GET /ready    GET /metrics    GET /state    GET /groups    GET /version    POST /drain
GET / (browsers)    GET /page/…    GET /page/events
websocket /device
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from gateway.config import GatewayConfig
from gateway.delivery import Desk
from gateway.device_socket import DeviceSocket
from gateway.dispatch import Dispatcher
from gateway.door import GROUPS, Door
from gateway.error_shapes import response_to
from gateway.errors import ClientGone, RequestError, model_not_found
from gateway.groups import groups_of, known_groups
from gateway.key_book import KeyBook, KeyRecord
from gateway.key_stores import IN_REDIS, KeyFile
from gateway.key_watch import follow
from gateway.limits.limiter import Limiter, MemoryStore
from gateway.metrics import GatewayMetrics
from gateway.page.routes import add_page
from gateway.page.view import MAX_AGENTS
from gateway.policy import can_serve
from gateway.reception import Reception
from gateway.registry.memory import MemoryRegistry
from gateway.registry.registry import Registry
from gateway.reply_schema import ModelCard, ModelList
from gateway.request_routes import PREFIXES, add_requests
from gateway.roster import Roster
from gateway.state import state_of
from gateway.token_socket import TokenSockets
from service.traces import NO_TRACES, OWN_TRACES, Traces
from service.version import VERSION
from wire.request_messages import ServedModel

if TYPE_CHECKING:
    from gateway.fleet import Fleet

EXPOSED = (
    *("x-request-id", "retry-after", "retry-after-ms", "openai-processing-ms"),
    *(f"x-ratelimit-{each}-{what}" for each in ("limit", "remaining", "reset") for what in ("requests", "tokens")),
)
"""Headers that pages of allowed origins may read."""


def create_app(config: GatewayConfig, traces: Traces = NO_TRACES) -> FastAPI:
    """Return the application; ``app.state.desk`` holds its dispatcher and counters. Raises ``BadKeyStore``."""
    metrics = GatewayMetrics(traces)
    book = KeyBook(config.keys, config.limits, stored=bool(config.key_store), secret=config.gateway_token)
    keys = KeyFile(config.key_store) if config.key_store not in ("", IN_REDIS) else None
    if keys is not None:
        book.replace(keys.read())
    fleet = _fleet(config, book, metrics) if config.redis else None
    registry: Registry = MemoryRegistry() if fleet is None else fleet.registry
    limiter = Limiter(MemoryStore()) if fleet is None else fleet.limiter
    roster = Roster(config, registry)
    dispatcher = Dispatcher(config, roster, on_drain=lambda: None if fleet is None else fleet.drain())
    desk = Desk(config, roster, dispatcher, metrics, Reception(book, limiter, roster), traces)
    if fleet is not None:
        fleet.serve(roster)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.gather(registry.open(), *([fleet.open()] if fleet is not None else []))
        following = None if keys is None else asyncio.create_task(follow(keys, book))
        try:
            yield
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            if fleet is not None:
                await fleet.close()
            await registry.close()

    app = FastAPI(
        title="Trilby gateway", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False,
        lifespan=lifespan, telemetry=OWN_TRACES,
    )  # fmt: skip
    app.state.desk = desk
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(HTTPException, _on_http_error)
    add_requests(app, desk, fleet)
    _add_models(app, desk)
    _add_operations(app, desk, fleet)
    _add_sockets(app, desk)
    add_page(app, desk, lambda: None if fleet is None else fleet.shown(MAX_AGENTS))
    app.add_middleware(
        Door, config=config, metrics=desk.metrics, book=book
    )  # The last one added is the first to be passed.
    if config.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    return app


def _fleet(config: GatewayConfig, book: KeyBook, metrics: GatewayMetrics) -> Fleet:
    from gateway.fleet import Fleet  # With redis' client, which a gateway alone does without.

    return Fleet(config, book, metrics)


def _add_models(app: FastAPI, desk: Desk) -> None:
    def card(model: ServedModel) -> ModelCard:
        groups = groups_of(model.id, desk.roster.known())
        tasks: list[str] = [*model.tasks, *(["decide"] if model.decides else [])]
        found = ModelCard(model.id, model.created, model.max_positions, tasks=tasks, groups=groups or msgspec.UNSET)
        return msgspec.structs.replace(found, lossy=True, t_max_s=model.t_max_s) if model.t_max_s else found

    async def list_models(request: Request) -> Response:
        key: KeyRecord = request.state.key
        return _json(ModelList([card(model) for model in desk.roster.models() if key.may_use(model.id)]))

    async def one_model(request: Request) -> Response:
        wanted = request.path_params["model_id"]
        for model in desk.roster.models():
            if model.id == wanted and request.state.key.may_use(wanted):
                return _json(card(model))
        raise model_not_found(wanted)

    for prefix in PREFIXES:
        app.add_api_route(f"{prefix}/models", list_models, methods=["GET"])
        app.add_api_route(f"{prefix}/models/{{model_id:path}}", one_model, methods=["GET"])


def _add_operations(app: FastAPI, desk: Desk, fleet: Fleet | None) -> None:
    dispatcher, roster = desk.dispatcher, desk.roster

    async def health(request: Request) -> Response:
        if dispatcher.draining:
            return _json({"status": "draining"}, 503)
        return _json({"status": "ok"} if fleet is None else {"status": "ok", "redis": "ok" if fleet.up else "gone"})

    async def live(request: Request) -> Response:
        return _json({"status": "alive"})

    async def ready(request: Request) -> Response:
        able = not dispatcher.draining and any(can_serve(agent) for agent in roster.known())
        return _json({"status": "ready"}) if able else _json({"status": "no agent can serve"}, 503)

    async def metrics(request: Request) -> Response:
        desk.metrics.running.set(roster.running)
        desk.metrics.waiting.set(len(roster.waiting))
        desk.metrics.agents.set(len(roster.links))
        return Response(desk.metrics.text(), media_type=desk.metrics.content_type)

    async def drain(request: Request) -> Response:
        dispatcher.start_draining()
        return _json({"status": "draining", "running": roster.running}, 202)

    async def state(request: Request) -> Response:
        return _json(state_of(desk) | ({} if fleet is None else {"fleet": fleet.shown()}))

    async def groups(request: Request) -> Response:
        return _json(known_groups(roster.known()))

    async def version(request: Request) -> Response:
        return _json({"version": VERSION})

    app.add_api_route("/version", version, methods=["GET"])
    app.add_api_route("/health", health, methods=["GET", "HEAD"])
    app.add_api_route("/live", live, methods=["GET", "HEAD"])
    app.add_api_route("/ready", ready, methods=["GET", "HEAD"])
    app.add_api_route("/metrics", metrics, methods=["GET"])
    app.add_api_route("/drain", drain, methods=["POST"])
    app.add_api_route("/state", state, methods=["GET"])
    app.add_api_route(GROUPS, groups, methods=["GET"])


def _add_sockets(app: FastAPI, desk: Desk) -> None:
    app.add_api_websocket_route("/device", DeviceSocket(desk).serve)
    tokens = TokenSockets(desk)
    for prefix in PREFIXES:
        app.add_api_websocket_route(f"{prefix}/stream", tokens.serve)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    if not hasattr(request.state, "asked"):
        _note(request, error)
    return response_to(request.scope["path"], error, request.state.request_id)


async def _on_client_gone(request: Request, error: Exception) -> Response:
    request.state.span.note(outcome="aborted")
    return Response(status_code=499)  # Nobody reads it; nginx's number for the same.


async def _on_http_error(request: Request, error: Exception) -> Response:
    """The framework's own errors: no such path, no such method."""
    assert isinstance(error, HTTPException)
    messages = {404: "there is nothing at this path", 405: "this path does not know this method"}
    codes = {404: "not_found", 405: "method_not_allowed"}
    told = RequestError(
        error.status_code,
        messages.get(error.status_code, "the request cannot be answered"),
        code=codes.get(error.status_code),
        headers=dict(error.headers or {}),
    )
    return await _on_request_error(request, told)


def _note(request: Request, error: RequestError) -> None:
    request.state.span.fail(error.code or "invalid_value")
    request.app.state.desk.metrics.refused(request.state.request_id, request.scope["path"], error, request.state.tenant)
