"""Token websockets: how many there may be, of all clients and of one, and one client's (``token_messages.py``)."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress
from typing import Final, NoReturn

import msgspec
from msgspec import UNSET
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gateway.answer import Answer, Complete
from gateway.delivery import Desk, Outlet, attended
from gateway.errors import ClientGone, RequestError, too_many
from gateway.limits.limiter import Grant
from gateway.meter import RequestMeter
from gateway.parsing import parse
from gateway.reception import charge, over
from gateway.reporting import report
from gateway.request import Ask
from gateway.token_messages import AcceptedReply, DoneReply, ErrorMessage, SocketReply, read_message, told
from service.errands import traceparent_of
from wire.crowd import Crowd, party_of

MAX_SOCKETS: Final = 1024
"""At once; more than agents can answer, and each costs some kilobytes while it is idle."""

MAX_SOCKETS_OF_CLIENT: Final = 128
"""Of those, with one API key, or from one address where none is asked."""

IDLE_S: Final = 300.0
"""A socket on which nothing is asked for so long is closed: to open another is a round trip."""

IDLE_CODE: Final = 4408
"""The websocket close code that says so: the number of HTTP's request timeout."""

_encode: Final = msgspec.json.Encoder().encode


class TokenSocket:
    """One client's socket; it has a place among ``others`` and may lose it while it is idle.

    Attributes:
        dismissed: set when somebody else needs its place.
    """

    def __init__(self, websocket: WebSocket, desk: Desk, others: Crowd[TokenSocket]) -> None:
        self._websocket = websocket
        self._desk = desk
        self._others = others
        self.dismissed = asyncio.Event()
        self._outlet = Outlet(websocket.send)
        self._base_id: str = websocket.state.request_id
        self._name = f"websocket {websocket.scope['path']}"
        self._traceparent = traceparent_of(websocket.headers.getlist("traceparent"))
        self._answer: Answer | None = None

    async def run(self) -> None:
        """Serve requests one after another until the client leaves, or is idle for too long."""
        await self._websocket.accept()
        try:
            for number in itertools.count(1):
                data = await self._next()
                self._others.busy(self)
                await self._serve(data, f"{self._base_id}-{number}")
                self._others.idle(self, asyncio.get_running_loop().time())
        except (ClientGone, WebSocketDisconnect):
            return

    async def _next(self) -> bytes:
        """The next request. Raises ``ClientGone`` where none comes in time, or the place is needed before."""
        ways = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self.dismissed.wait())
        try:
            await asyncio.wait(ways, timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED)
            if ways[0].done():
                return ways[0].result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        return await self._leave(IDLE_CODE, "no request for too long")

    async def _serve(self, data: bytes, request_id: str) -> None:
        try:
            endpoint = read_message(data)
            if endpoint is None:
                return
            ask = parse(endpoint, data, self._websocket.state.tenant, streamed=True)
            if self._websocket.state.key.models:
                ask = self._desk.reception.meant(ask, self._websocket.state.key)
            if ask.scored_by:
                told = "the log-probabilities of a prompt are told over HTTP only: POST /v1/completions"
                raise RequestError(400, told, code="unsupported_value", param=ask.scored_by)
        except RequestError as error:
            self._note(request_id, error)
            return await self._tell_last(ErrorMessage(request_id, error.reply.error))
        began, outcome, self._answer = time.perf_counter(), "aborted", None
        span = self._desk.traces.span(self._name, self._traceparent)
        span.note(request_id=request_id)
        meter = RequestMeter(self._desk.metrics, began, request_id, span, ask.tenant)
        grant = None
        try:
            grant = await self._desk.reception.admit(ask, self._websocket.state.key)
            work = self._work(ask, request_id, meter, grant)
            answered = await attended(self._desk, work, self._cancelled(), self._outlet)
            outcome = "answered" if answered else "cancelled"
            # Told when nothing else reads here any more: the next message may follow at once.
            await self._tell_last(DoneReply(request_id, cancelled=not answered))
        except RequestError as error:
            outcome = error.code or "invalid_value"
            meter.failed(error.code)
            await self._tell_last(ErrorMessage(request_id, error.reply.error))
        finally:
            if outcome in ("aborted", "cancelled"):
                meter.finished("abort")
            over(grant, self._answer)
            report(ask, meter, self._answer, outcome)
            span.end()

    async def _work(self, ask: Ask, request_id: str, meter: RequestMeter, grant: Grant | None) -> None:
        async with self._desk.dispatcher.answering(ask, meter) as answer:
            self._answer = answer
            charge(grant, answer, ask)
            fingerprint, ids = answer.fingerprint or UNSET, answer.prompt_ids.get(0, UNSET)
            await self._tell(AcceptedReply(request_id, answer.model, answer.total.prompt_tokens, fingerprint, ids))
            while True:
                events = await answer.take()
                for reply in told(events, request_id):
                    await self._tell(reply)
                if events and isinstance(events[-1], Complete):
                    return

    async def _cancelled(self) -> None:
        """Ends when the client cancels; other messages are answered with an error."""
        busy = RequestError(409, "another request is running on this socket", code="request_in_progress")
        while True:
            data = await self._receive()
            try:
                if read_message(data) is None:
                    return
                error = busy
            except RequestError as wrong:
                error = wrong
            self._note(self._base_id, error)
            await self._tell(ErrorMessage(None, error.reply.error))

    async def _receive(self) -> bytes:
        if self._websocket.client_state is WebSocketState.DISCONNECTED:  # Seen while a request was ending.
            raise ClientGone
        message = await self._websocket.receive()
        if message["type"] != "websocket.receive":
            raise ClientGone
        text = message.get("text")
        if text is None:
            self._note(self._base_id, RequestError(400, "a message is text", code="invalid_json"))
            await self._leave(1003)
        data: bytes = text.encode("utf-8", "surrogatepass")
        if len(data) > self._desk.config.max_body_bytes:
            self._note(self._base_id, RequestError(413, "the message is too large", code="body_too_large"))
            await self._leave(1009)
        return data

    async def _leave(self, code: int, reason: str = "") -> NoReturn:
        """Close the socket; whoever does not take what was sent before is not waited for. Raises ``ClientGone``."""
        with suppress(asyncio.TimeoutError, WebSocketDisconnect, RuntimeError):  # It may be gone already.
            await asyncio.wait_for(self._websocket.close(code, reason), self._desk.config.client_within_s)
        raise ClientGone

    def _note(self, request_id: str, error: RequestError) -> None:
        self._desk.metrics.refused(request_id, self._websocket.scope["path"], error, self._websocket.state.tenant)

    async def _tell_last(self, reply: SocketReply) -> None:
        """As ``_tell``, where nobody else looks at how long the client takes to read."""
        try:
            await asyncio.wait_for(self._tell(reply), self._desk.config.client_within_s)
        except asyncio.TimeoutError:
            raise ClientGone from None

    async def _tell(self, reply: SocketReply) -> None:
        try:
            await self._outlet.send({"type": "websocket.send", "text": _encode(reply).decode()})
        except (WebSocketDisconnect, RuntimeError):
            raise ClientGone from None


class TokenSockets:
    """Who is idle goes first when others come; where all are busy the newcomer is refused."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._crowd: Crowd[TokenSocket] = Crowd(MAX_SOCKETS, MAX_SOCKETS_OF_CLIENT, IDLE_S)

    async def serve(self, websocket: WebSocket) -> None:
        """One client's socket, to its end."""
        socket = TokenSocket(websocket, self._desk, self._crowd)
        address = websocket.client.host if websocket.client is not None else ""
        party = websocket.state.tenant or party_of(address)
        idle = self._crowd.enter(socket, party, asyncio.get_running_loop().time())
        if idle is None:
            refused = too_many("too many websockets are open and busy; try again later")
            state = websocket.state
            self._desk.metrics.refused(state.request_id, websocket.scope["path"], refused, state.tenant)
            return await refused.deny(websocket)
        for each in idle:
            each.dismissed.set()
        try:
            await socket.run()
        finally:
            self._crowd.leave(socket)
