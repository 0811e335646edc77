"""``/v1/stream``: answers token by token over a websocket, for clients that want no server-sent events.

The client sends a request as one JSON text message: the body of a chat or completion request as over HTTP, with
``"endpoint": "chat.completions"`` or ``"completions"`` (may be left out: ``messages`` means chat, ``prompt`` means
completions; ``stream`` and ``stream_options`` mean nothing here). The answer is JSON text messages, each with the
request's ``id``:

    {"type": "accepted", "id": ID, "model": MODEL, "prompt_tokens": 5}
    {"type": "delta", "id": ID, "index": 0, "text": "Hel", "tokens": 2}        any number; "logprobs" when asked for
    {"type": "finished", "id": ID, "index": 0, "finish_reason": "stop"}        once for each choice
    {"type": "usage", "id": ID, "usage": {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}}
    {"type": "done", "id": ID, "cancelled": false}                             the last one

("usage" has "completion_tokens_details" too where tokens were drafted, as over HTTP; "finished" has "timings" where a
cloud took part: where the choice's time went, in milliseconds,

    {"prompt": {"device_ms": 9.1, "link_ms": 41.3, "queue_ms": 0.2, "step_ms": 12.5},
     "decode": {"device_ms": 30.2, "link_ms": 80.9, "queue_ms": 1.1, "step_ms": 25.4, "rounds": 4}}

until its prompt was answered, and summed over the rounds after that: on the device until it had sent what it asked, on
the link, waiting in the cloud and in its step. Over HTTP a reply of one choice has it, and the chunk with the usage.)

    {"type": "error", "id": ID, "error": {"message": …, "type": …, "param": …, "code": …}}       instead of the rest

``{"type": "cancel"}`` ends the running request, which then answers ``done`` with ``cancelled`` true; when none runs it
does nothing. After ``done`` or ``error`` the next request may follow on the same socket. A request sent while another
runs is refused with an ``error`` of code ``request_in_progress`` and ``id`` null; the running one goes on. Closing the
socket cancels. A text that arrives in pieces that are not whole characters is held back, so ``tokens`` may come with an
empty ``text``. API keys go into the ``Authorization`` header of the handshake.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gateway.answer import Answer, Complete, Event
from gateway.asking import Ask, Endpoint
from gateway.delivery import Desk, Outlet, attended, log_request
from gateway.errors import ClientGone, ErrorBody, RequestError
from gateway.metrics import RequestMeter
from gateway.parsing import parse
from gateway.refusals import note_refusal
from gateway.replies import content_logprobs, timings_of, usage_of
from gateway.reply_schema import AnswerTimings, ContentLogprob, Usage
from wire.messages import Delta, Finished


class _Reply(msgspec.Struct, frozen=True, tag_field="type"):
    """Any message to the client."""

    id: str | None


class AcceptedReply(_Reply, frozen=True, tag="accepted"):
    """An agent has the request."""

    model: str
    prompt_tokens: int


class DeltaReply(_Reply, frozen=True, tag="delta"):
    """More text of a choice."""

    index: int
    text: str
    tokens: int
    logprobs: list[ContentLogprob] | UnsetType = UNSET


class FinishedReply(_Reply, frozen=True, tag="finished"):
    """A choice is complete."""

    index: int
    finish_reason: str
    timings: AnswerTimings | UnsetType = UNSET


class UsageReply(_Reply, frozen=True, tag="usage"):
    """Tokens of the request."""

    usage: Usage


class DoneReply(_Reply, frozen=True, tag="done"):
    """The request is over."""

    cancelled: bool = False


class ErrorMessage(_Reply, frozen=True, tag="error"):
    """The request has failed."""

    error: ErrorBody


class _Envelope(msgspec.Struct):
    """Just enough of a client's message to know what it is."""

    type: Any = None
    endpoint: Any = None
    messages: msgspec.Raw | UnsetType = UNSET
    prompt: msgspec.Raw | UnsetType = UNSET


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_encode: Final = msgspec.json.Encoder().encode


def read_message(data: bytes) -> Endpoint | None:
    """Which endpoint a client's message is for, None when it is ``cancel``. Pure.

    Raises:
        RequestError: it is neither.
    """
    try:
        envelope = _ENVELOPE.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise RequestError(400, "a message is a JSON object", code="invalid_json") from None
    if envelope.type == "cancel":
        return None
    if envelope.endpoint == "chat.completions":
        return "chat.completions"
    if envelope.endpoint == "completions":
        return "completions"
    if envelope.endpoint is not None:
        raise RequestError(
            400, "'endpoint' is 'chat.completions' or 'completions'", code="invalid_value", param="endpoint"
        )
    if envelope.messages is not UNSET:
        return "chat.completions"
    if envelope.prompt is not UNSET:
        return "completions"
    raise RequestError(400, "a request has 'messages' or 'prompt'", code="missing_required_parameter")


def told(events: list[Event], request_id: str) -> list[_Reply]:
    """The messages that tell these events, all but ``done``. Pure."""
    replies: list[_Reply] = []
    for event in events:
        if isinstance(event, Delta):
            tokens = UNSET if event.logprobs is None else content_logprobs(event.logprobs)
            replies.append(DeltaReply(request_id, event.index, event.text, event.tokens, tokens))
        elif isinstance(event, Finished):
            replies.append(FinishedReply(request_id, event.index, event.reason, timings_of(event.timings)))
        else:
            replies.append(UsageReply(request_id, usage_of(event)))
    return replies


class TokenSocket:
    """One client's socket."""

    def __init__(self, websocket: WebSocket, desk: Desk) -> None:
        self._websocket = websocket
        self._desk = desk
        self._outlet = Outlet(websocket.send)
        self._base_id: str = websocket.state.request_id
        self._answer: Answer | None = None

    async def run(self) -> None:
        """Serve requests one after another until the client leaves."""
        await self._websocket.accept()
        try:
            for number in itertools.count(1):
                await self._serve(await self._receive(), f"{self._base_id}-{number}")
        except (ClientGone, WebSocketDisconnect):
            return

    async def _serve(self, data: bytes, request_id: str) -> None:
        try:
            endpoint = read_message(data)
            if endpoint is None:
                return
            # Nothing here is sent in one piece.
            ask = replace(parse(endpoint, data), stream=True, tenant=self._websocket.state.tenant)
        except RequestError as error:
            self._note(request_id, error)
            return await self._tell(ErrorMessage(request_id, error.reply.error))
        began, outcome, self._answer = time.perf_counter(), "aborted", None
        meter = RequestMeter(self._desk.metrics, began)
        work = self._work(ask, request_id, meter)
        try:
            if await attended(work, self._cancelled(), self._outlet, self._desk.config, self._desk.tick_s):
                outcome = "answered"
            else:
                outcome = "cancelled"
            # Told when nothing else reads here any more: the next message may follow at once.
            done = DoneReply(request_id, cancelled=outcome == "cancelled")
            try:
                await asyncio.wait_for(self._tell(done), self._desk.config.client_within_s)
            except asyncio.TimeoutError:
                raise ClientGone from None
        except RequestError as error:
            outcome = error.code or "invalid_value"
            meter.failed(error.code)
            await self._tell(ErrorMessage(request_id, error.reply.error))
        finally:
            if outcome in ("aborted", "cancelled"):
                meter.finished("abort")
            log_request(ask, request_id, self._answer, began, outcome)

    async def _work(self, ask: Ask, request_id: str, meter: RequestMeter) -> None:
        async with self._desk.dispatcher.answering(ask, request_id, meter) as answer:
            self._answer = answer
            await self._tell(AcceptedReply(request_id, answer.model, answer.prompt_tokens))
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
            await self._websocket.close(1003)
            raise ClientGone
        data: bytes = text.encode("utf-8", "surrogatepass")
        if len(data) > self._desk.config.max_body_bytes:
            self._note(self._base_id, RequestError(413, "the message is too large", code="body_too_large"))
            await self._websocket.close(1009)
            raise ClientGone
        return data

    def _note(self, request_id: str, error: RequestError) -> None:
        note_refusal(self._desk.metrics, request_id, self._websocket.scope["path"], error)

    async def _tell(self, reply: _Reply) -> None:
        try:
            await self._outlet.send({"type": "websocket.send", "text": _encode(reply).decode()})
        except (WebSocketDisconnect, RuntimeError):
            raise ClientGone from None
