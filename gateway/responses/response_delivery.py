"""From a response to bytes at the client, and into the store before its end is told; and what is kept there."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.answer import Answer
from gateway.delivery import Desk, Outlet, TextDelivery, attended, disconnected, named_events_of, send_json
from gateway.error_shapes import NAMES, RESPONSES, renamed
from gateway.errors import ClientGone, RequestError
from gateway.responses.kept import Responses
from gateway.responses.response_objects import Kept
from gateway.responses.response_parsing import ResponseAsk
from gateway.responses.response_shape import ResponseShape

log = structlog.get_logger()


class ResponseDelivery(TextDelivery):
    """The answer to a request for a response."""

    def __init__(self, store: Responses, desk: Desk, ask: ResponseAsk, request_id: str, began: float) -> None:
        super().__init__(desk, ask, request_id, began)
        self._store = store
        self._asked = ask

    def _shape(self, answer: Answer) -> ResponseShape:
        return ResponseShape(replace(self._asked.response, model=answer.model))

    def _told(self, objects: Iterable[Any]) -> bytes:
        return named_events_of(objects)

    async def _keep(self, shape: ResponseShape) -> None:
        if shape.response.status == "completed":
            shape.response = replace(shape.response, completed_at=int(time.time()))
        if not shape.response.store:
            return
        kept = msgspec.json.encode(Kept(shape.response, list(self._asked.items)))
        if not await self._store.put(self._asked.tenant, shape.response.id, kept):
            # The answer is good all the same; it says that it is not stored.
            shape.response = replace(shape.response, store=False)
            log.warning("response not stored", request_id=self._request_id, bytes=len(kept))

    def _end(self, shape: ResponseShape) -> bytes:
        return named_events_of(shape.closing())

    def _failure(self, shape: ResponseShape, error: RequestError) -> bytes:
        return named_events_of(shape.failed(renamed(error, NAMES[RESPONSES])))


class KeptDelivery(Response):
    """The answer to a question about a response that is kept. No agent has it, but the store has, and then its client:
    so it is one of the requests that a tenant may have open, until it was read.

    Args:
        found: what to tell, in JSON; raises ``RequestError`` where there is nothing.
    """

    def __init__(self, desk: Desk, tenant: str, found: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._desk = desk
        self._tenant = tenant
        self._found = found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet = Outlet(send)
        with self._desk.dispatcher.passing(self._tenant), suppress(ClientGone):
            await attended(self._desk, self._told(outlet), disconnected(receive), outlet)

    async def _told(self, outlet: Outlet) -> None:
        await send_json(outlet, await self._found())
