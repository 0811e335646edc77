"""Errors that clients see, in OpenAI's shape, and the one table from the wire's codes to HTTP.

    RequestError          status, type, code, param, and a message that is safe to show
    ClientGone            nobody reads the answer any more; nothing can be shown

A message never contains paths, addresses, keys, prompts or representations of objects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.websockets import WebSocket

from wire.errors import Code, SessionFailed

MAX_MESSAGE: Final = 1024
"""Characters of an error message sent to a client."""

MAX_PARAM: Final = 128
"""Characters of the member an error is about: all of ours are shorter."""

DEFAULT_RETRY_S: Final = 1.0
"""Retry-After where nothing better is known."""


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object: all four members are always there."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(msgspec.Struct, frozen=True):
    """What a failed request is answered with."""

    error: ErrorBody


class RequestError(Exception):
    """A request ends with this.

    Args:
        retry_s: when it may be tried again.
        kind: OpenAI's word for the error where it is not that of its status: the limit that was reached, say.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_s: float | None = None,
        headers: dict[str, str] | None = None,
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:MAX_MESSAGE]
        self.code = code
        self.param = param[:MAX_PARAM] if param is not None else None
        self.kind = kind
        self.headers = (headers or {}) | ({} if retry_s is None else retry_after(retry_s))

    @property
    def type(self) -> str:
        """OpenAI's word for it."""
        if self.kind:
            return self.kind
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    @property
    def reply(self) -> ErrorReply:
        """The body to send."""
        return ErrorReply(ErrorBody(self.message, self.type, self.param, self.code))

    def response(self) -> Response:
        """Return the whole HTTP response."""
        return Response(msgspec.json.encode(self.reply), self.status, self.headers, media_type="application/json")

    async def deny(self, websocket: WebSocket) -> None:
        """Refuse a websocket that has not been accepted, with this as its HTTP response where the server can."""
        await websocket.receive()
        if "websocket.http.response" in websocket.scope.get("extensions", {}):
            await websocket.send_denial_response(self.response())
        else:
            await websocket.close(1008)


class ClientGone(Exception):
    """The client has disconnected, or does not read what it is sent."""


TOLD: Final = {
    code: told
    for told, codes in {
        (400, "invalid_value"): (Code.INVALID_REQUEST,),
        (400, "context_length_exceeded"): (Code.CONTEXT_LENGTH_EXCEEDED,),
        (404, "model_not_found"): (Code.MODEL_NOT_FOUND,),
        (500, "not_finite"): (Code.NOT_FINITE,),
        (500, "internal_error"): (Code.INTERNAL,),
        (502, "upstream_error"): (
            Code.CREDIT_EXCEEDED, Code.BAD_FRAME, Code.TOO_LARGE, Code.UNEXPECTED_MESSAGE, Code.VERSION_MISMATCH,
            Code.MODEL_MISMATCH, Code.DIGEST_MISMATCH, Code.SPLIT_MISMATCH, Code.DTYPE_MISMATCH, Code.UNAUTHORIZED,
            Code.NAME_TAKEN, Code.TOO_LITTLE_MEMORY, Code.DISK_FAILED,
            Code.SHAPE_MISMATCH, Code.BAD_POSITION, Code.UNKNOWN_SESSION, Code.DUPLICATE_SESSION,
        ),
        (503, "overloaded"): (
            Code.OVERLOADED, Code.SESSION_LIMIT, Code.TOKEN_LIMIT, Code.PREEMPTED, Code.EVICTED,
        ),
        (503, "upstream_lost"): (Code.STAGE_LOST, Code.UPSTREAM_LOST, Code.LOST),
        (503, "draining"): (Code.DRAINING,),
        (503, "cancelled"): (Code.CANCELLED,),
        (504, "timeout"): (Code.TIMEOUT,),
    }.items()
    for code in codes
}  # fmt: skip
"""Status and code of every code an agent may fail a request with. A client's mistake is 4xx; ours, or the machines
behind us, 5xx; after 503 it may be tried again."""


def for_client(failure: SessionFailed) -> RequestError:
    """Return what a client is told of a failure that came over the wire."""
    (status, code), message = TOLD[failure.code], failure.message or failure.code.value
    headers = retry_after(failure.retry_after_s) if status == 503 else {}
    return RequestError(status, message, code=code, param=failure.param, headers=headers)


def retry_after(seconds: float | None) -> dict[str, str]:
    """Return a Retry-After header: whole seconds, at least one, whatever a peer has sent."""
    wait_s = seconds if seconds is not None and 0 < seconds <= 3600 else DEFAULT_RETRY_S
    return {"Retry-After": str(max(1, math.ceil(wait_s)))}


FINAL: Final = {"x-should-retry": "false"}
"""Header of an error after which asking again at once would only take as long again."""


def model_not_found(model: str) -> RequestError:
    """No agent serves this model; the name is shown back, shortened."""
    text = f"The model '{_shown(model)}' does not exist or no device agent serves it"
    return RequestError(404, f"{text}; GET /v1/models lists those there are", code="model_not_found", param="model")


ENDPOINTS: Final = {"generate": "/v1/completions", "embed": "/v1/embeddings", "classify": "/v1/classify"}
"""What clients call each task."""


def other_task(task: str, tasks: Sequence[str], model: str) -> RequestError:
    """The model does something else than what is asked of it; without a name, no model does that."""
    others = " and ".join(ENDPOINTS.get(each, each) for each in tasks) or "nothing"
    text = f"the model '{_shown(model)}' does not serve {ENDPOINTS[task]}: it serves {others}"
    if not model:
        text = f"no model here serves {ENDPOINTS[task]}: the first there is serves {others}"
    return RequestError(400, text, code="unsupported_value", param="model")


def scores_nothing(model: str, param: str) -> RequestError:
    """No agent that serves the model tells how likely a prompt is; ``param`` asked for that."""
    text = f"the model '{_shown(model)}' does not tell how likely a prompt is here: leave '{param}' out"
    hint = ", or ask for it without 'echo'" if param == "logprobs" else ""
    return RequestError(400, f"{text}{hint}", code="unsupported_value", param=param)


def drafter_not_found(draft: str, known: Sequence[str]) -> RequestError:
    """No agent that serves the model has this drafter; the name is shown back, shortened, with those there are."""
    text = f"there is no drafter '{_shown(draft)}' for this model; 'draft' is one of: {', '.join(known)}"
    return RequestError(400, text, code="invalid_value", param="draft")


def no_forms(param: str) -> RequestError:
    """Not all who serve the model can hold its answers to the form that ``param`` asks for."""
    told = f"the devices that serve this model cannot hold its answers to a form: leave '{param}' out"
    return RequestError(400, told, code="unsupported_value", param=param)


def no_tools(model: str) -> RequestError:
    """Not all who serve the model can tell it of tools."""
    told = f"the model '{_shown(model)}' is served by devices that tell it of no tools: leave 'tools' out"
    return RequestError(400, told, code="unsupported_value", param="tools")


def too_many(what: str) -> RequestError:
    """There is so much of something already that whoever adds to it had better come back later."""
    return RequestError(429, what, code="rate_limit_exceeded", retry_s=2.0)


def none_free(within_s: float) -> RequestError:
    """All agents that could take a request are full."""
    text = f"no device agent came free within {within_s:.3g} s; try again later"
    return RequestError(503, text, code="overloaded", retry_s=2.0)


def draining() -> RequestError:
    """This gateway takes nothing new."""
    return RequestError(503, "this gateway is stopping", code="draining", retry_s=2.0)


def internal() -> RequestError:
    """A bug of ours; the log has the rest, under the request's id."""
    return RequestError(500, "internal error; the log has more under this x-request-id", code="internal_error")


def _shown(name: str) -> str:
    return name if len(name) <= 100 else name[:100] + "…"
