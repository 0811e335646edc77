"""The gateway's application: every endpoint, and what holds for all of them.

POST /v1/chat/completions    POST /v1/completions    POST /v1/embeddings    POST /v1/classify
POST /v1/tokenize    POST /v1/detokenize    POST /v1/chat/completions/input_tokens
GET /v1/models    GET /v1/models/{id}    websocket /v1/stream
the same without /v1
GET /health    GET /ready    GET /metrics    GET /state    GET /groups    GET /version    POST /drain
websocket /device
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from gateway.body import Intake
from gateway.config import GatewayConfig
from gateway.delivery import Delivery, Desk, TextDelivery
from gateway.device_socket import DeviceSocket
from gateway.dispatch import Dispatcher
from gateway.door import GROUPS, Door
from gateway.errors import ClientGone, RequestError, model_not_found
from gateway.groups import groups_of, known_groups, shown
from gateway.metrics import GatewayMetrics
from gateway.parsing import parse
from gateway.policy import can_serve
from gateway.reading_delivery import ReadingDelivery
from gateway.reading_parsing import parse_read
from gateway.reading_request import ReadEndpoint
from gateway.registry import MemoryRegistry, Registry
from gateway.reply_schema import ModelCard, ModelList
from gateway.request import Endpoint
from gateway.roster import Roster
from gateway.text_delivery import TokensDelivery
from gateway.text_parsing import parse_text
from gateway.text_request import TextEndpoint
from gateway.token_socket import TokenSockets
from service.version import VERSION
from wire.request_messages import ServedModel

PREFIXES = ("/v1", "")

EXPOSED = ("x-request-id", "retry-after", "openai-processing-ms")
"""Headers that pages of allowed origins may read."""


def create_app(config: GatewayConfig) -> FastAPI:
    """Return the application; ``app.state.desk`` holds its dispatcher and counters."""
    registry: Registry = MemoryRegistry()
    roster = Roster(config, registry)
    desk = Desk(config, roster, Dispatcher(config, roster), GatewayMetrics())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await registry.open()
        try:
            yield
        finally:
            await registry.close()

    app = FastAPI(
        title="Trilby gateway", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False,
        lifespan=lifespan,
    )  # fmt: skip
    app.state.desk = desk
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(HTTPException, _on_http_error)
    _add_requests(app, desk)
    _add_models(app, desk)
    _add_operations(app, desk)
    _add_sockets(app, desk)
    app.add_middleware(Door, config=config, metrics=desk.metrics)  # The last one added is the first to be passed.
    if config.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    return app


def _add_requests(app: FastAPI, desk: Desk) -> None:
    config = desk.config
    intake = Intake(config.max_body_bytes, config.max_reading_bytes, config.body_within_s)

    def answers(delivery: Callable[[Request, bytes], Delivery]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            response = delivery(request, await intake.read(request, request.state.tenant))
            request.state.asked = True  # From here on the delivery counts and logs how it ends.
            return response

        return answer

    def texts(endpoint: Endpoint) -> Callable[[Request, bytes], Delivery]:
        def delivery(request: Request, body: bytes) -> Delivery:
            state = request.state
            return TextDelivery(desk, parse(endpoint, body, state.tenant), state.request_id, state.began)

        return delivery

    def readings(endpoint: ReadEndpoint) -> Callable[[Request, bytes], Delivery]:
        def delivery(request: Request, body: bytes) -> Delivery:
            state = request.state
            return ReadingDelivery(desk, parse_read(endpoint, body, state.tenant), state.request_id, state.began)

        return delivery

    def tokenizing(endpoint: TextEndpoint) -> Callable[[Request, bytes], Delivery]:
        def delivery(request: Request, body: bytes) -> Delivery:
            state = request.state
            return TokensDelivery(desk, parse_text(endpoint, body, state.tenant), state.request_id, state.began)

        return delivery

    counted = "/chat/completions/input_tokens"
    for prefix in PREFIXES:
        app.add_api_route(f"{prefix}{counted}", answers(tokenizing("input_tokens")), methods=["POST"])
        app.add_api_route(f"{prefix}/tokenize", answers(tokenizing("tokenize")), methods=["POST"])
        app.add_api_route(f"{prefix}/detokenize", answers(tokenizing("detokenize")), methods=["POST"])
        app.add_api_route(f"{prefix}/chat/completions", answers(texts("chat.completions")), methods=["POST"])
        app.add_api_route(f"{prefix}/completions", answers(texts("completions")), methods=["POST"])
        app.add_api_route(f"{prefix}/embeddings", answers(readings("embeddings")), methods=["POST"])
        app.add_api_route(f"{prefix}/classify", answers(readings("classify")), methods=["POST"])


def _add_models(app: FastAPI, desk: Desk) -> None:
    def card(model: ServedModel) -> ModelCard:
        groups = groups_of(model.id, desk.roster.links)
        tasks: list[str] = [*model.tasks]
        found = ModelCard(model.id, model.created, model.max_positions, tasks=tasks, groups=groups or msgspec.UNSET)
        return msgspec.structs.replace(found, lossy=True, t_max_s=model.t_max_s) if model.t_max_s else found

    async def list_models(request: Request) -> Response:
        return _json(ModelList([card(model) for model in desk.roster.models()]))

    async def one_model(request: Request) -> Response:
        wanted = request.path_params["model_id"]
        for model in desk.roster.models():
            if model.id == wanted:
                return _json(card(model))
        raise model_not_found(wanted)

    for prefix in PREFIXES:
        app.add_api_route(f"{prefix}/models", list_models, methods=["GET"])
        app.add_api_route(f"{prefix}/models/{{model_id:path}}", one_model, methods=["GET"])


def _add_operations(app: FastAPI, desk: Desk) -> None:
    dispatcher, roster = desk.dispatcher, desk.roster

    async def health(request: Request) -> Response:
        return _json({"status": "draining"}, 503) if dispatcher.draining else _json({"status": "ok"})

    async def ready(request: Request) -> Response:
        able = not dispatcher.draining and any(can_serve(link.record) for link in roster.links)
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
        return _json(state_of(desk))

    async def groups(request: Request) -> Response:
        return _json(known_groups(roster.links))

    async def version(request: Request) -> Response:
        return _json({"version": VERSION})

    app.add_api_route("/version", version, methods=["GET"])
    app.add_api_route("/health", health, methods=["GET", "HEAD"])
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


def state_of(desk: Desk) -> dict[str, Any]:
    """Return agents and load, for people. What agents run is counted in answers, what is open here in prompts."""
    agents = []
    for link in desk.roster.links:
        record = link.record
        agents.append(
            {
                "name": record.name,
                "models": [model.id for model in record.models],
                "drafts": {model.id: model.drafts for model in record.models},
                "tasks": {model.id: model.tasks for model in record.models},
                "acceptance": round(link.accepted / link.proposed, 3) if link.proposed else None,
                "running": record.running,
                "capacity": record.capacity,
                "assigned": record.assigned,
                "draining": record.draining,
                "cloud_connected": record.cloud_connected,
                "connected_s": round(time.monotonic() - link.since, 1),
                "rtt_ms": None if link.stream.rtt_s is None else round(link.stream.rtt_s * 1e3, 2),
                **({"group": shown(link.group)} if link.group is not None else {}),
                **({"lossy": {"t_max_s": limits}} if (limits := _limits(record.models)) else {}),
            }
        )
    return {
        "draining": desk.dispatcher.draining,
        "running": desk.roster.running,
        "waiting": len(desk.roster.waiting),
        "max_waiting": desk.config.max_waiting,
        "models": [model.id for model in desk.roster.models()],
        "agents": agents,
    }


def _limits(models: Sequence[ServedModel]) -> dict[str, float]:
    """Of models whose heads may be left out, within how many seconds prompts are read."""
    return {model.id: model.t_max_s for model in models if model.t_max_s}


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    if not hasattr(request.state, "asked"):
        _note(request, error)
    return error.response()


async def _on_client_gone(request: Request, error: Exception) -> Response:
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
    _note(request, told)
    return told.response()


def _note(request: Request, error: RequestError) -> None:
    request.app.state.desk.metrics.refused(request.state.request_id, request.scope["path"], error)
