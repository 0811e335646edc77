"""What is said on ``/v1/stream``, a websocket with answers token by token, for clients that want no server-sent events.
Pure.

The client sends a request as one JSON text message: the body of a chat or completion request as over HTTP, with
``"endpoint": "chat.completions"`` or ``"completions"`` (may be left out: ``messages`` means chat, ``prompt`` means
completions; ``stream`` and ``stream_options`` mean nothing here). The answer is JSON text messages, each with the
request's ``id``:

    {"type": "accepted", "id": ID, "model": MODEL, "prompt_tokens": 5}
    {"type": "delta", "id": ID, "index": 0, "text": "Hel", "tokens": 2}        any number; "logprobs" when asked for
                                                                               "reasoning_content", "tool_calls" as in
                                                                               chunks of chats, where there are some
    {"type": "finished", "id": ID, "index": 0, "finish_reason": "stop"}        once for each choice
    {"type": "usage", "id": ID, "usage": {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}}
    {"type": "done", "id": ID, "cancelled": false}                             the last one

("accepted" has "system_fingerprint" too where the device says one. With ``return_token_ids`` each "delta" has
"token_ids", and "accepted" the first prompt's "prompt_token_ids"; with ``return_token_origins`` it has "token_origins".
"usage" has "completion_tokens_details" where tokens were drafted, as over HTTP; "finished" has "timings" where a cloud
took part: where the choice's time went, in ms,

    {"prompt": {"device_ms": 9.1, "link_ms": 41.3, "queue_ms": 0.2, "step_ms": 12.5},
     "decode": {"device_ms": 30.2, "link_ms": 80.9, "queue_ms": 1.1, "step_ms": 25.4, "rounds": 4}}

until its prompt was answered, and summed over the rounds after that: on the device until it had sent what it asked, on
the link, waiting in the cloud and in its step. Over HTTP a reply of one choice has it, and the chunk with the usage.)

    {"type": "error", "id": ID, "error": {"message": …, "type": …, "param": …, "code": …}}       instead of the rest

``{"type": "cancel"}`` ends the running request, which then answers ``done`` with ``cancelled`` true; when none runs it
does nothing. After ``done`` or ``error`` the next request may follow on the same socket. A request sent while another
runs is refused with an ``error`` of code ``request_in_progress`` and ``id`` null; the running one goes on. Closing the
socket cancels. One on which nothing is asked for minutes is closed (code 4408), sooner where others need its place. A
text that arrives in pieces that are not whole characters is held back, so ``tokens`` may come with an empty ``text``.
API keys go into the ``Authorization`` header of the handshake.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.answer import Complete, Event
from gateway.chosen_calls import call_piece
from gateway.errors import ErrorBody, RequestError
from gateway.likelihoods import content_logprobs
from gateway.openai_schema import NULL
from gateway.origins import origins_of
from gateway.reply_schema import AnswerTimings, ContentLogprob, TokenOrigin, ToolCallPiece, Usage
from gateway.request import Endpoint
from gateway.usage import timings_of, usage_of
from wire.request_messages import Delta, Finished


class SocketReply(msgspec.Struct, frozen=True, tag_field="type"):
    """Any message to the client."""

    id: str | None


class AcceptedReply(SocketReply, frozen=True, tag="accepted"):
    """An agent has the request."""

    model: str
    prompt_tokens: int
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class DeltaReply(SocketReply, frozen=True, tag="delta"):
    """More text of a choice."""

    index: int
    text: str
    tokens: int
    logprobs: list[ContentLogprob] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPiece] | UnsetType = UNSET
    token_origins: list[TokenOrigin] | UnsetType = UNSET


class FinishedReply(SocketReply, frozen=True, tag="finished"):
    """A choice is complete."""

    index: int
    finish_reason: str
    timings: AnswerTimings | UnsetType = UNSET


class UsageReply(SocketReply, frozen=True, tag="usage"):
    """Tokens of the request."""

    usage: Usage


class DoneReply(SocketReply, frozen=True, tag="done"):
    """The request is over."""

    cancelled: bool = False


class ErrorMessage(SocketReply, frozen=True, tag="error"):
    """The request has failed."""

    error: ErrorBody


class _Envelope(msgspec.Struct):
    """Just enough of a client's message to know what it is; nothing is made of what else may be in it."""

    type: msgspec.Raw = NULL
    endpoint: msgspec.Raw = NULL
    messages: msgspec.Raw | UnsetType = UNSET
    prompt: msgspec.Raw | UnsetType = UNSET


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def read_message(data: bytes) -> Endpoint | None:
    """Return the endpoint that a client's message is for, None when it is ``cancel``.

    Raises:
        RequestError: it is neither.
    """
    try:
        envelope = _ENVELOPE.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise RequestError(400, "a message is a JSON object", code="invalid_json") from None
    if bytes(envelope.type) == b'"cancel"':
        return None
    endpoint = bytes(envelope.endpoint)
    if endpoint == b'"chat.completions"':
        return "chat.completions"
    if endpoint == b'"completions"':
        return "completions"
    if endpoint != b"null":
        raise RequestError(
            400, "'endpoint' is 'chat.completions' or 'completions'", code="invalid_value", param="endpoint"
        )
    if envelope.messages is not UNSET:
        return "chat.completions"
    if envelope.prompt is not UNSET:
        return "completions"
    raise RequestError(400, "a request has 'messages' or 'prompt'", code="missing_required_parameter")


def told(events: list[Event], request_id: str) -> list[SocketReply]:
    """Return the messages that tell these events, all but ``done``."""
    replies: list[SocketReply] = []
    for event in events:
        if isinstance(event, Delta):
            tokens = UNSET if event.logprobs is None else content_logprobs(event.logprobs)
            ids = UNSET if event.ids is None else event.ids
            more = (event.reasoning or UNSET, UNSET if event.call is None else [call_piece(event.call)])
            origins = UNSET if event.origins is None else origins_of(event.origins)
            replies.append(DeltaReply(request_id, event.index, event.text, event.tokens, tokens, ids, *more, origins))
        elif isinstance(event, Finished):
            replies.append(FinishedReply(request_id, event.index, event.reason, timings_of(event)))
        elif isinstance(event, Complete):
            replies.append(UsageReply(request_id, usage_of(event)))
    return replies
