"""How a refused request is answered, by the API of its path: with members under that API's names, in its shape. Pure.

Requests of all APIs become the same terms, so what refuses them speaks of chat's members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.responses import Response

from gateway.errors import ErrorReply, RequestError

RESPONSES: Final = "/responses"
MESSAGES: Final = "/messages"

NAMES: Final[dict[str, dict[str, str]]] = {
    RESPONSES: {"messages": "input", "max_tokens": "max_output_tokens"},
    MESSAGES: {"stop": "stop_sequences"},
}
"""What each API calls a chat's members, where it has another name."""

KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's word for each status."""


class MessagesErrorBody(msgspec.Struct, frozen=True):
    """Anthropic's error object; ``param`` and ``code`` are OpenAI's."""

    type: str
    message: str
    param: str | None
    code: str | None


class MessagesError(msgspec.Struct, frozen=True):
    """What a failed request is answered with at Anthropic, and an event of a stream."""

    error: MessagesErrorBody
    request_id: str
    type: str = "error"


def api_of(path: str) -> str:
    """Return the API that a path belongs to: ``RESPONSES``, ``MESSAGES``, or empty for all others."""
    path = path.removeprefix("/v1")
    return next((api for api in NAMES if path == api or path.startswith(f"{api}/")), "")


def response_to(path: str, error: RequestError, request_id: str) -> Response:
    """Return the whole HTTP response."""
    api = api_of(path)
    reply: ErrorReply | MessagesError = renamed(error, NAMES.get(api, {})).reply
    if api == MESSAGES:
        reply = messages_error(error, request_id)
    return Response(msgspec.json.encode(reply), error.status, error.headers, media_type="application/json")


def failure_event(path: str, error: RequestError, request_id: str) -> bytes:
    """Return what ends a stream of this path whose gateway is gone."""
    if api_of(path) == MESSAGES:
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(messages_error(error, request_id))
    return b"data: %b\n\n" % msgspec.json.encode(error.reply)


def messages_error(error: RequestError, request_id: str) -> MessagesError:
    """Return an error in Anthropic's shape."""
    kind = KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    told = renamed(error, NAMES[MESSAGES])
    return MessagesError(MessagesErrorBody(kind, told.message, told.param, told.code), request_id)


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """Return an error that speaks of members under other names."""
    message, param = error.message, error.param
    for old, new in names.items():
        message = message.replace(f"'{old}'", f"'{new}'")
        if param is not None and (param == old or param.startswith((f"{old}.", f"{old}["))):
            param = new + param[len(old) :]
    return RequestError(error.status, message, code=error.code, param=param, headers=error.headers, kind=error.kind)
