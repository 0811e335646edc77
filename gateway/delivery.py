"""From an accepted request to bytes at the client, streamed or whole, and the watch over both.

``attended`` runs the work beside a watch for the client's end; whatever ends first ends the other. The work holds
``Dispatcher.answering`` open, so its end, of whatever kind, is the end at the agent too.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog
from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.agents import Reservation
from gateway.answer import Answer, Complete, Event
from gateway.config import GatewayConfig
from gateway.dispatch import Dispatcher
from gateway.errors import ClientGone, ErrorReply, RequestError
from gateway.limits.limiter import Grant
from gateway.meter import RequestMeter
from gateway.metrics import GatewayMetrics
from gateway.reception import Reception, charge, over
from gateway.replies import ChatShape, CompletionShape, Shape
from gateway.reply_schema import Heading, Reply
from gateway.reporting import report
from gateway.request import AnyAsk, Ask
from gateway.roster import Roster
from service.traces import NO_TRACES, Traces

TICK_S = 1.0
"""How often a request's client is looked at, at most; less often than any of its limits would be too late."""

PIECE_BYTES: Final = 64 * 2**10
"""Of a body that is sent at its end: the server keeps as much for a client before a send waits."""

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"

STREAM: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""Headers of a stream; the last two keep caches and proxies from holding chunks back."""

_encode: Final = msgspec.json.Encoder().encode

log = structlog.get_logger()


@dataclass(frozen=True)
class Desk:
    """What answering a request takes: settings, agents, counters and traces."""

    config: GatewayConfig
    roster: Roster
    dispatcher: Dispatcher
    metrics: GatewayMetrics
    reception: Reception
    traces: Traces = NO_TRACES


class Outlet:
    """The way out to one client, which knows since when it is stuck.

    No send has a timer of its own: ``attended`` looks at ``stuck_since`` now and then, which costs a token nothing.
    """

    def __init__(self, put: Callable[[Any], Awaitable[None]]) -> None:
        self._put = put
        self.stuck_since: float | None = None
        self.sent_at = time.monotonic()

    async def send(self, message: Any) -> None:
        """Send one message of the transport."""
        self.stuck_since = time.monotonic()
        await self._put(message)
        self.stuck_since = None
        self.sent_at = time.monotonic()


async def attended(
    desk: Desk,
    work: Coroutine[Any, Any, None],
    gone: Coroutine[Any, Any, None],
    outlet: Outlet,
    quiet: Callable[[], None] = lambda: None,
) -> bool:
    """Run ``work`` until it ends (returns True) or ``gone`` does (returns False); meanwhile call ``quiet`` when nothing
    was sent for long.

    Raises:
        ClientGone: the client has not read what was sent for too long.
        Exception: whatever ``work`` or ``gone`` raises.
    """
    config, working, watching = desk.config, asyncio.create_task(work), asyncio.create_task(gone)
    tick_s = min(TICK_S, config.keep_alive_s / 2, config.client_within_s / 2)
    try:
        while True:
            await asyncio.wait((working, watching), timeout=tick_s, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            if watching.done():
                watching.result()
                return False
            now = time.monotonic()
            if outlet.stuck_since is not None:
                if now - outlet.stuck_since >= config.client_within_s:
                    raise ClientGone
            elif now - outlet.sent_at >= config.keep_alive_s:
                quiet()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


class Delivery(Response):
    """The response to a request: errors before the first byte are raised, so that they get their status.

    Attributes:
        grant: leave for the request, where it needs one.
        kept: the room it must have at once, where it is not to wait.
        meter: of the request; whoever has begun its span ends it.
    """

    def __init__(self, desk: Desk, ask: AnyAsk, request_id: str, began: float) -> None:
        super().__init__()
        self.grant: Grant | None = None
        self.kept: Reservation | None = None
        self._desk = desk
        self._request = ask
        self._request_id = request_id
        self.meter = RequestMeter(desk.metrics, began, request_id, tenant=ask.tenant)
        self._answer: Answer | None = None
        self._streaming = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet = Outlet(send)
        outcome = "internal_error"
        try:
            gone = disconnected(receive)
            answered = await attended(self._desk, self._answered(outlet), gone, outlet, self._keep_alive)
            outcome = "answered" if answered else "aborted"
        except (ClientGone, asyncio.CancelledError):
            outcome = "aborted"
        except RequestError as error:
            outcome = error.code or "invalid_value"
            self.meter.failed(error.code)
            if not self._streaming:
                raise
        finally:
            if outcome == "aborted":
                self.meter.finished("abort")
            nobody = self._answer is None and self.kept is not None and outcome != "aborted"
            over(self.grant, self._answer, elsewhere=nobody)
            self.let_go()
            report(self._request, self.meter, self._answer, outcome)

    def let_go(self) -> None:
        """Free the room that was kept. Safe to call again."""
        if self.kept is not None:
            self.kept.close()

    async def _answered(self, outlet: Outlet) -> None:
        answering = self._desk.dispatcher.answering
        async with answering(self._request, self.meter, self.kept) as answer:
            self._answer = answer
            charge(self.grant, answer, self._request)
            if self._request.stream:
                return await self._stream(answer, outlet)
            events: list[Event] = []
            while not (events and isinstance(events[-1], Complete)):
                events += await answer.take()
        await self._send_whole(events, answer.model, outlet)

    @abstractmethod
    async def _stream(self, answer: Answer, outlet: Outlet) -> None:
        """Send the answer as it comes."""

    @abstractmethod
    async def _send_whole(self, events: Sequence[Event], model: str, outlet: Outlet) -> None:
        """Send all of an answer of ``model``, whose events end with ``Complete``, in one response."""

    def _keep_alive(self) -> None:
        if self._streaming and self._answer is not None:
            self._answer.nudge()


class TextDelivery(Delivery):
    """The response to a request for text."""

    def __init__(self, desk: Desk, ask: Ask, request_id: str, began: float) -> None:
        super().__init__(desk, ask, request_id, began)
        self._ask = ask

    async def _send_whole(self, events: Sequence[Event], model: str, outlet: Outlet) -> None:
        assert self._answer is not None
        shape = self._shape(self._answer)
        shape.absorb(events)
        await self._keep(shape)
        await send_json(outlet, shape.whole())

    async def _stream(self, answer: Answer, outlet: Outlet) -> None:
        self._streaming = True
        shape = self._shape(answer)
        await outlet.send(start_of(STREAM))
        await outlet.send(piece_of(self._told(shape.opening(range(self._ask.choices)))))
        try:
            while True:
                events = await answer.take()
                data = self._told(shape.chunks(events)) if events else KEEP_ALIVE
                if events and isinstance(events[-1], Complete):
                    await self._keep(shape)
                    return await send_last(outlet, data + self._end(shape))
                if data:
                    await outlet.send(piece_of(data))
        except RequestError as error:
            await send_last(outlet, self._failure(shape, error))
            raise

    def _shape(self, answer: Answer) -> Any:
        """What makes replies of events: a ``Shape``, or what has its methods."""
        return shape_of(self._ask, answer, self._request_id)

    def _told(self, objects: Iterable[Any]) -> bytes:
        """Objects as the events of a stream."""
        return events_of(objects)

    async def _keep(self, shape: Any) -> None:
        """All is said but the end of it; here is time to keep what has to be known afterwards."""

    def _end(self, shape: Any) -> bytes:
        """How a stream ends."""
        return DONE

    def _failure(self, shape: Any, error: RequestError) -> bytes:
        """How a stream ends that has failed."""
        return events_of([error.reply])


def shape_of(ask: Ask, answer: Answer, request_id: str) -> Shape:
    """Return the shape of the answers to a request."""
    prefix, shape = ("chatcmpl", ChatShape) if ask.endpoint == "chat.completions" else ("cmpl", CompletionShape)
    fingerprint = answer.fingerprint or UNSET
    heading = Heading(f"{prefix}-{request_id}", int(time.time()), answer.model, ask.include_usage, fingerprint)
    return shape(
        heading,
        ask.choices,
        ask.terms.logprobs is not None,
        echo=ask.terms.echo,
        prompt_logprobs=ask.prompt_logprobs,
        prompt_ids=answer.prompt_ids if ask.terms.return_token_ids else None,
        origins=ask.terms.return_token_origins,
    )


def events_of(objects: Iterable[Reply[Any] | ErrorReply]) -> bytes:
    """Return these objects as server-sent events. JSON has no raw line ends, so each is a single ``data`` line."""
    return b"".join([b"data: %b\n\n" % _encode(each) for each in objects])


def named_events_of(objects: Iterable[Any]) -> bytes:
    """Return objects that have a ``type`` as server-sent events of that name."""
    return b"".join([b"event: %b\ndata: %b\n\n" % (each.type.encode(), _encode(each)) for each in objects])


async def disconnected(receive: Receive) -> None:
    """Return once the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(outlet: Outlet, reply: object) -> None:
    """Send all of a response."""
    body = _encode(reply)
    await outlet.send(start_of({"content-type": "application/json", "content-length": str(len(body))}))
    await send_last(outlet, body)


async def send_last(outlet: Outlet, data: bytes) -> None:
    """Send the last of a body, of any length. A send waits until the client has what was sent before, and not for what
    it is given itself: of one long piece the server would have all, and nobody would look whether it is read."""
    if len(data) > PIECE_BYTES:
        for at in range(0, len(data), PIECE_BYTES):
            await outlet.send(piece_of(data[at : at + PIECE_BYTES]))
        data = b""
    await outlet.send(piece_of(data, last=True))


def start_of(headers: dict[str, str]) -> Message:
    """Return what begins a good response."""
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": 200, "headers": raw}


def piece_of(data: bytes, *, last: bool = False) -> Message:
    """Return a piece of a response's body."""
    return {"type": "http.response.body", "body": data, "more_body": not last}
