"""The endpoints of responses.

POST /v1/responses    POST /v1/responses/input_tokens
GET, DELETE /v1/responses/{id}    GET /v1/responses/{id}/input_items    POST /v1/responses/{id}/cancel
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from gateway.delivery import Delivery, Desk
from gateway.members import bad
from gateway.request import AnyAsk
from gateway.responses.items import Item
from gateway.responses.kept import Responses, not_found
from gateway.responses.response_delivery import KeptDelivery, ResponseDelivery
from gateway.responses.response_objects import Deleted, ItemList, Kept, ResponseObject
from gateway.responses.response_parsing import ID, ResponseAsk, decoded_response, response_ask
from gateway.text_delivery import TokensDelivery
from gateway.text_parsing import counting
from gateway.text_request import TextAsk

LISTED: Final = 20
MOST_LISTED: Final = 100

_decode: Final = msgspec.json.Decoder(Kept).decode


Read = Callable[[bytes, str], Awaitable[AnyAsk]]
Answers = Callable[[Read, Callable[..., Delivery]], Callable[[Request], Awaitable[Response]]]
"""Makes an endpoint of what reads requests and what answers them."""


def add_responses(app: FastAPI, path: str, store: Responses, answers: Answers, desk: Desk) -> None:
    """Add the endpoints at a path and below."""
    responses = ResponseDesk(store, desk)
    for below, serve, method in (
        ("", answers(responses.read, responses.delivery), "POST"),
        ("/input_tokens", answers(responses.read_to_count, TokensDelivery), "POST"),
        ("/{id}", responses.one, "GET"),
        ("/{id}", responses.delete, "DELETE"),
        ("/{id}/input_items", responses.input_items, "GET"),
        ("/{id}/cancel", responses.cancel, "POST"),
    ):
        app.add_api_route(f"{path}{below}", serve, methods=[method])


class ResponseDesk:
    """Reads requests for responses, and answers what concerns those that are kept."""

    def __init__(self, store: Responses, desk: Desk) -> None:
        self._store = store
        self._desk = desk

    async def read(self, body: bytes, tenant: str) -> ResponseAsk:
        """Return what a request asks for.

        Raises:
            RequestError: it is not as it has to be, the response before it is not kept, or nobody can say.
        """
        fields = decoded_response(body)
        before = fields.previous_response_id
        items = []
        if before is not None:
            with self._desk.dispatcher.passing(tenant):
                kept = await self._kept(tenant, before, "previous_response_id")
            items = [*kept.input, *kept.response.output]
        return response_ask(fields, items, f"resp_{secrets.token_hex(16)}", int(time.time()), tenant)

    async def read_to_count(self, body: bytes, tenant: str) -> TextAsk:
        """Return the question how many tokens a request has; raises like ``read``."""
        return counting(await self.read(body, tenant), "input_tokens")

    def delivery(self, desk: Desk, ask: ResponseAsk, request_id: str, began: float) -> ResponseDelivery:
        """Return the answer to a request."""
        return ResponseDelivery(self._store, desk, ask, request_id, began)

    async def one(self, request: Request) -> Response:
        """GET: a response that is kept."""
        if request.query_params.get("stream", "").lower() in ("true", "1"):
            raise bad(
                "stream", "a response that is kept is not streamed again: leave 'stream' out", "unsupported_value"
            )

        async def found() -> ResponseObject:
            return (await self._kept(*_meant(request))).response

        return self._told(request, found)

    async def delete(self, request: Request) -> Response:
        """DELETE: forget a response."""
        tenant, id = _meant(request)

        async def deleted() -> Deleted:
            if not ID.fullmatch(id) or not await self._store.delete(tenant, id):
                raise not_found(id)
            return Deleted(id)

        return self._told(request, deleted)

    async def input_items(self, request: Request) -> Response:
        """GET: the items that a response was made of, the last first unless asked otherwise."""
        asked = request.query_params
        limit = asked.get("limit", str(LISTED))
        if not (limit.isdecimal() and len(limit) < 10 and 1 <= int(limit) <= MOST_LISTED):
            raise bad("limit", f"'limit' is 1 to {MOST_LISTED}")
        if (order := asked.get("order", "desc")) not in ("asc", "desc"):
            raise bad("order", "'order' is 'asc' or 'desc'")

        async def found() -> ItemList:
            kept = await self._kept(*_meant(request))
            items = kept.input if order == "asc" else kept.input[::-1]
            return _page(items, int(limit), asked.get("after"))

        return self._told(request, found)

    async def cancel(self, request: Request) -> Response:
        """POST: nothing here goes on in the background."""

        async def refused() -> None:
            await self._kept(*_meant(request))
            told = "only responses that go on in the background are cancelled: close the stream instead"
            raise bad("background", told)

        return self._told(request, refused)

    def _told(self, request: Request, found: Callable[[], Awaitable[object]]) -> Response:
        return KeptDelivery(self._desk, request.state.tenant, found)

    async def _kept(self, tenant: str, id: str, param: str | None = None) -> Kept:
        data = await self._store.get(tenant, id) if ID.fullmatch(id) else None
        if data is None:
            raise not_found(id, param)
        return _decode(data)


def _meant(request: Request) -> tuple[str, str]:
    """Whose response a path means, and which."""
    return request.state.tenant, request.path_params["id"]


def _page(items: Sequence[Item], limit: int, after: str | None) -> ItemList:
    """So many of the items; raises ``RequestError`` where none has the id that they are to come after."""
    if after is not None:
        places = [at for at, item in enumerate(items) if item.id == after]
        if not places:
            raise bad("after", "'after' is the id of one of these items")
        items = items[places[0] + 1 :]
    shown = list(items[:limit])
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return ItemList(shown, first, last, len(shown) < len(items))
