"""The endpoints of requests that agents answer: what each reads, and how its answer is delivered."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from gateway.body import Intake
from gateway.decisions.delivery import DecisionDelivery
from gateway.decisions.parsing import parse_decision
from gateway.delivery import Delivery, Desk, TextDelivery
from gateway.messages.message_delivery import MessageDelivery
from gateway.messages.message_parsing import parse_count, parse_message
from gateway.parsing import parse
from gateway.reading_delivery import ReadingDelivery
from gateway.reading_parsing import parse_read
from gateway.reading_request import ReadEndpoint
from gateway.request import Endpoint
from gateway.responses.kept import MemoryResponses
from gateway.responses.routes import add_responses
from gateway.text_delivery import TokensDelivery
from gateway.text_parsing import parse_text
from gateway.text_request import TextEndpoint
from service.errands import traceparent_of

if TYPE_CHECKING:
    from gateway.fleet import Fleet

PREFIXES = ("/v1", "")

Answering = Callable[[Request], Awaitable[Response]]


def add_requests(app: FastAPI, desk: Desk, fleet: Fleet | None) -> None:
    """Add the endpoints."""
    config = desk.config
    intake = Intake(config.max_body_bytes, config.max_reading_bytes, config.body_within_s)

    def answers(
        read: Callable[[bytes, str], Any], delivery: Callable[..., Delivery]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            state, given = request.state, request.headers.getlist("traceparent")
            ago_s, name = time.perf_counter() - state.began, f"POST {request.scope['path']}"
            span = state.span = desk.traces.span(name, traceparent_of(given), ago_s)
            span.note(request_id=state.request_id)
            body = await intake.read(request, state.tenant)
            ask = read(body, state.tenant)
            if isawaitable(ask):  # What a request says may have to be looked up first.
                ask = await ask
            if state.model and ask.model is None:
                ask = replace(ask, model=state.model)
            if fleet is not None or state.key.models:
                ask = desk.reception.meant(ask, state.key)

            async def here() -> Response:
                response = delivery(desk, ask, state.request_id, state.began)
                response.meter.span = span
                if not state.waits:
                    response.kept = desk.dispatcher.keep(ask)  # First: who is refused has asked for nothing.
                try:
                    response.grant = state.grant = await desk.reception.admit(ask, state.key)
                except BaseException:
                    response.let_go()
                    raise
                state.asked = True  # From here on the delivery counts and logs how it ends.
                return response

            if fleet is None or state.forwarded or fleet.better(ask) is None:
                return await here()
            from gateway.forwarding import Forward

            desk.reception.check_model(ask, state.key)
            return Forward(desk, fleet, ask, request, body, here)

        return answer

    def texts(endpoint: Endpoint) -> Answering:
        return answers(partial(parse, endpoint), TextDelivery)

    def readings(endpoint: ReadEndpoint) -> Answering:
        return answers(partial(parse_read, endpoint), ReadingDelivery)

    def texts_alone(endpoint: TextEndpoint) -> Answering:
        return answers(partial(parse_text, endpoint), TokensDelivery)

    store = MemoryResponses() if fleet is None else fleet.responses
    for prefix in PREFIXES:
        add_responses(app, f"{prefix}/responses", store, answers, desk)
        app.add_api_route(f"{prefix}/messages", answers(parse_message, MessageDelivery), methods=["POST"])
        app.add_api_route(f"{prefix}/messages/count_tokens", answers(parse_count, TokensDelivery), methods=["POST"])
        app.add_api_route(f"{prefix}/chat/completions/input_tokens", texts_alone("input_tokens"), methods=["POST"])
        app.add_api_route(f"{prefix}/tokenize", texts_alone("tokenize"), methods=["POST"])
        app.add_api_route(f"{prefix}/detokenize", texts_alone("detokenize"), methods=["POST"])
        app.add_api_route(f"{prefix}/chat/completions", texts("chat.completions"), methods=["POST"])
        app.add_api_route(f"{prefix}/completions", texts("completions"), methods=["POST"])
        app.add_api_route(f"{prefix}/embeddings", readings("embeddings"), methods=["POST"])
        app.add_api_route(f"{prefix}/decisions", answers(parse_decision, DecisionDelivery), methods=["POST"])
        app.add_api_route(f"{prefix}/classify", readings("classify"), methods=["POST"])
