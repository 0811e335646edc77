"""A request that another gateway answers: sent there as it came, its answer passed on as it comes.

It is sent with the gateways' token, as whose it is, and is never sent on by who gets it. Whatever happens before the
client has got anything, another gateway is tried, or this one answers itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import httpx
import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.answer import MAX_ANSWER
from gateway.delivery import Desk, Outlet, attended, disconnected, piece_of, send_last
from gateway.error_shapes import failure_event
from gateway.errors import ClientGone, RequestError
from gateway.fleet import Fleet
from gateway.key_book import KEY_ELSEWHERE
from gateway.keys import NOT_OURS
from gateway.peer_client import PeerFailed
from gateway.reading_request import ReadAsk
from gateway.request import AnyAsk
from gateway.routing import Better
from service.traces import Span

MOST_TRIES: Final = 3
"""Gateways that are asked one after the other before this one answers itself."""

PASSED_ON: Final = (
    *("content-type", "cache-control", "x-accel-buffering", "retry-after", "retry-after-ms", "x-should-retry"),
    *(f"x-ratelimit-{each}-{what}" for each in ("limit", "remaining", "reset") for what in ("requests", "tokens")),
)
"""Headers of its answer that the client gets."""

ELSEWHERE: Final = frozenset({"draining", "no_agent", "agents_unavailable", "model_not_found", KEY_ELSEWHERE, NOT_OURS})
"""Codes of refusals that are about that gateway and not about the request."""

FULL: Final = frozenset({"overloaded"})
"""The same, where it was asked because it seemed to have room: what it told of itself is up to a second old."""

log = structlog.get_logger()


class Forward(Response):
    """The response to a request that another gateway should answer.

    Args:
        here: answers it at this one.
    """

    def __init__(
        self,
        desk: Desk,
        fleet: Fleet,
        ask: AnyAsk,
        request: Request,
        body: bytes,
        here: Callable[[], Awaitable[Response]],
    ) -> None:
        super().__init__()
        self._desk = desk
        self._fleet = fleet
        self._ask = ask
        self._path = request.url.path
        self._body = body
        self._request_id: str = request.state.request_id
        self._span: Span = request.state.span
        self._here = here

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet, tried, full = Outlet(send), set[str](), set[str]()
        for _ in range(MOST_TRIES):
            better = self._fleet.better(self._ask, tried, full)
            if better is None:
                break
            try:
                with self._desk.dispatcher.passing(self._ask.tenant):
                    return await self._through(better, outlet, receive)
            except PeerFailed as failed:
                (full if str(failed) in FULL else tried).add(better.peer.id)
                if failed.lost:
                    self._fleet.shun(better.peer)
                self._note(better, "failed", str(failed))
        await (await self._here())(scope, receive, send)

    async def _through(self, better: Better, outlet: Outlet, receive: Receive) -> None:
        try:
            with self._fleet.sending(better.peer):
                answered = await attended(self._desk, self._pass_on(better, outlet), disconnected(receive), outlet)
        except ClientGone:
            answered = False
        except RequestError as error:
            self._desk.metrics.failed.labels(error.code or "invalid_value").inc()
            self._span.fail(error.code or "invalid_value")
            self._fleet.broke_off(better.peer, self._ask.tenant)
            return self._note(better, "lost", error.code or "")
        self._note(better, "answered" if answered else "aborted")

    async def _pass_on(self, better: Better, outlet: Outlet) -> None:
        """Raises ``PeerFailed`` while nothing was sent to the client, ``RequestError`` where it was told of the end."""
        asked = self._path, self._body, self._request_id, self._ask.tenant
        asking = self._fleet.client.asking
        model = self._ask.model or ""
        async with asking(better.peer, *asked, self._span.traceparent, at_once=better.free, model=model) as reply:
            # Vectors may be more than is worth to be kept here.
            if reply.status_code == 200 and (self._ask.stream or isinstance(self._ask, ReadAsk)):
                return await self._stream(reply, outlet)
            body = await _whole(reply)
            code = _code_of(body) if reply.status_code != 200 else ""
            if code in (ELSEWHERE | FULL if better.free else ELSEWHERE):
                raise PeerFailed(code, lost=code == NOT_OURS)
            await outlet.send(_start_of(reply, {"content-length": str(len(body))}))
            await send_last(outlet, body)

    async def _stream(self, reply: httpx.Response, outlet: Outlet) -> None:
        await outlet.send(_start_of(reply, {}))
        try:
            async for piece in reply.aiter_raw():
                await outlet.send(piece_of(piece))
        except (httpx.TransportError, httpx.StreamError):
            text = "the gateway that answered this request is gone"
            error = RequestError(503, text, code="upstream_lost")
            if self._ask.stream:  # Else the client's connection breaks off, too.
                await outlet.send(piece_of(failure_event(self._path, error, self._request_id), last=True))
            raise error from None
        await outlet.send(piece_of(b"", last=True))

    def _note(self, better: Better, outcome: str, why: str = "") -> None:
        self._fleet.forwarded.labels(outcome).inc()
        self._span.event("forwarded", outcome=outcome)
        said = {"why": why} if why else {}
        log.info("request forwarded", request_id=self._request_id, gateway=better.peer.url, outcome=outcome, **said)


async def _whole(reply: httpx.Response) -> bytes:
    body = bytearray()
    try:
        async for piece in reply.aiter_raw():
            body += piece
            if len(body) > 2 * MAX_ANSWER:
                raise PeerFailed("answers too much", lost=False)
    except (httpx.TransportError, httpx.StreamError) as error:
        raise PeerFailed(type(error).__name__, lost=True) from None
    return bytes(body)


class _Error(msgspec.Struct):
    code: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error


def _code_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error.code or ""
    except msgspec.MsgspecError:
        return ""


def _start_of(reply: httpx.Response, more: dict[str, str]) -> Message:
    headers = {name: reply.headers[name] for name in PASSED_ON if name in reply.headers} | more
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": reply.status_code, "headers": raw}
