"""From a response to bytes at the client, and into the store before its end is told."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from gateway.answer import Answer
from gateway.delivery import Desk, TextDelivery, named_events_of
from gateway.error_shapes import NAMES, RESPONSES, renamed
from gateway.errors import RequestError
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
