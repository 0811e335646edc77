"""The page's endpoints: ``/`` for browsers, its files, and ``/page/events``, what it is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.delivery import STREAM, Desk, Outlet, attended, disconnected, piece_of, start_of
from gateway.errors import ClientGone
from gateway.page.changes import Audience
from gateway.page.files import EVENTS, FILES, HEADERS, PAGE, START, PageFile
from gateway.page.watching import Watching, refused_elsewhere
from wire.crowd import party_of

RENEWED_S: Final = 900.0
"""A stream ends after so long, and the page shows its key again: it may be another's by now, or nobody's."""

AGAIN: Final = b"event: again\ndata: {}\n\n"
"""The last event of a stream that ends for that reason: nothing is wrong."""

KEY_NEEDED: Final = b"event: key\ndata: {}\n\n"
"""The only event where a key is needed and none was shown: any other status is an error in a browser's console."""


def add_page(app: FastAPI, desk: Desk, fleet: Callable[[], dict[str, Any] | None]) -> None:
    """Add them; ``app.state.watching`` holds who watches."""
    watching = app.state.watching = Watching(desk, fleet)

    async def page(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)  # As before there was a page: clients of the API have no business here.
        return _file(FILES[START], request, {"vary": "accept"})

    async def events(request: Request) -> Response:
        refused = refused_elsewhere(request.headers.get("sec-fetch-site"))
        if refused is not None:
            raise refused
        if request.state.key_needed:
            return Response(KEY_NEEDED, headers=STREAM)
        return EventStream(desk, watching, request)

    app.add_api_route(PAGE, page, methods=["GET", "HEAD"])
    app.add_api_route(EVENTS, events, methods=["GET"])
    for name, found in FILES.items():
        if name != START:
            app.add_api_route(f"/page/{name}", _sender(found), methods=["GET", "HEAD"])


def _sender(found: PageFile) -> Callable[[Request], Any]:
    async def send(request: Request) -> Response:
        return _file(found, request)

    return send


def _file(found: PageFile, request: Request, more: dict[str, str] | None = None) -> Response:
    headers = {**HEADERS, "etag": found.tag, **(more or {})}
    if found.tag in (each.strip() for each in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(found.data, headers=headers, media_type=found.type)


class EventStream(Response):
    """What one page is told, until it is closed, its key is good no more, or this gateway stops."""

    def __init__(self, desk: Desk, watching: Watching, request: Request) -> None:
        super().__init__()
        self._desk = desk
        self._watching = watching
        state = request.state
        self._audience = Audience(state.tenant, state.operator)
        self._key = state.key
        address = request.client.host if request.client is not None else ""
        self._party = "operator" if state.operator else state.tenant or party_of(address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet = Outlet(send)

        async def tell() -> None:
            with self._watching.watched(self._audience, self._party) as watcher:
                await outlet.send(start_of(STREAM))
                until = time.monotonic() + RENEWED_S
                async for data in watcher.events():
                    if self._desk.reception.still(self._key) is not None:
                        break
                    if time.monotonic() > until:
                        await outlet.send(piece_of(AGAIN))
                        break
                    await outlet.send(piece_of(data))
                await outlet.send(piece_of(b"", last=True))

        try:
            await attended(self._desk, tell(), disconnected(receive), outlet)
        except ClientGone:
            return
