"""Errors that clients see, in OpenAI's shape, and the one table from the wire's codes to HTTP.

    RequestError          status, type, code, param, and a message that is safe to show
    ClientGone            nobody reads the answer any more; nothing can be shown

A message never contains paths, addresses, keys, prompts or representations of objects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from wire.errors import Code

MAX_MESSAGE: Final = 1024
"""Characters of an error message sent to a client."""

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
    """A request ends with this."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:MAX_MESSAGE]
        self.type = type
        self.code = code
        self.param = param
        self.headers = headers or {}

    @property
    def reply(self) -> ErrorReply:
        """The body to send."""
        return ErrorReply(ErrorBody(self.message, self.type, self.param, self.code))

    def response(self) -> Response:
        """The whole HTTP response."""
        return Response(msgspec.json.encode(self.reply), self.status, self.headers, media_type="application/json")


class ClientGone(Exception):
    """The client has disconnected, or does not read what it is sent."""


class Told(NamedTuple):
    """How a code is told to clients; ``retry`` adds Retry-After."""

    status: int
    type: str
    code: str | None
    retry: bool = False


_CLOUD_SIDE: Final = Told(502, "server_error", "upstream_error")

TOLD: Final[dict[Code, Told]] = {
    Code.INVALID_REQUEST: Told(400, "invalid_request_error", "invalid_value"),
    Code.CONTEXT_LENGTH_EXCEEDED: Told(400, "invalid_request_error", "context_length_exceeded"),
    Code.MODEL_NOT_FOUND: Told(404, "invalid_request_error", "model_not_found"),
    Code.OVERLOADED: Told(503, "server_error", "overloaded", retry=True),
    Code.SESSION_LIMIT: Told(503, "server_error", "overloaded", retry=True),
    Code.TOKEN_LIMIT: Told(503, "server_error", "overloaded", retry=True),
    Code.PREEMPTED: Told(503, "server_error", "overloaded", retry=True),
    Code.EVICTED: Told(503, "server_error", "overloaded", retry=True),
    Code.STAGE_LOST: Told(503, "server_error", "upstream_lost", retry=True),
    Code.CREDIT_EXCEEDED: _CLOUD_SIDE,
    Code.DRAINING: Told(503, "server_error", "draining", retry=True),
    Code.UPSTREAM_LOST: Told(503, "server_error", "upstream_lost", retry=True),
    Code.LOST: Told(503, "server_error", "upstream_lost", retry=True),
    Code.TIMEOUT: Told(504, "server_error", "timeout"),
    Code.CANCELLED: Told(503, "server_error", "cancelled", retry=True),
    Code.NOT_FINITE: Told(500, "server_error", "not_finite"),
    Code.INTERNAL: Told(500, "server_error", "internal_error"),
    Code.BAD_FRAME: _CLOUD_SIDE,
    Code.TOO_LARGE: _CLOUD_SIDE,
    Code.UNEXPECTED_MESSAGE: _CLOUD_SIDE,
    Code.VERSION_MISMATCH: _CLOUD_SIDE,
    Code.MODEL_MISMATCH: _CLOUD_SIDE,
    Code.DIGEST_MISMATCH: _CLOUD_SIDE,
    Code.SPLIT_MISMATCH: _CLOUD_SIDE,
    Code.DTYPE_MISMATCH: _CLOUD_SIDE,
    Code.UNAUTHORIZED: _CLOUD_SIDE,
    Code.SHAPE_MISMATCH: _CLOUD_SIDE,
    Code.BAD_POSITION: _CLOUD_SIDE,
    Code.UNKNOWN_SESSION: _CLOUD_SIDE,
    Code.DUPLICATE_SESSION: _CLOUD_SIDE,
}
"""Every code an agent may fail a request with. A client's mistake is 4xx; ours, or the machines behind us, 5xx."""


def from_code(
    code: Code, message: str, *, param: str | None = None, retry_after_s: float | None = None
) -> RequestError:
    """The client's view of a failure that came over the wire."""
    told = TOLD[code]
    headers = retry_after(retry_after_s) if told.retry else {}
    return RequestError(
        told.status, message or code.value, type=told.type, code=told.code, param=param, headers=headers
    )


def retry_after(seconds: float | None) -> dict[str, str]:
    """A Retry-After header: whole seconds, at least one, whatever a peer has sent."""
    wait_s = seconds if seconds is not None and 0 < seconds <= 3600 else DEFAULT_RETRY_S
    return {"Retry-After": str(max(1, math.ceil(wait_s)))}


def too_slow_to_read() -> RequestError:
    """The client takes its answer so slowly that too much of it waits here."""
    return RequestError(408, "the answer was not read fast enough", type="invalid_request_error", code="slow_client")


def answer_too_large() -> RequestError:
    """An answer that is sent in one piece has become more than is kept for one client."""
    return RequestError(
        500,
        "the answer is too large to be sent in one piece: ask for a stream, or for fewer tokens",
        type="server_error",
        code="answer_too_large",
        headers={"x-should-retry": "false"},
    )


def too_large_to_send() -> RequestError:
    """The link to the agents takes no message of this size."""
    return RequestError(413, "the request is too large to be sent to a device agent", code="body_too_large")


def out_of_time(seconds: float) -> RequestError:
    """The request was given up; asking again at once would only take as long again."""
    return RequestError(
        504,
        f"the answer took longer than {seconds:g} s and was given up; ask for fewer tokens or raise --request-within-s",
        type="server_error",
        code="timeout",
        headers={"x-should-retry": "false"},
    )


def model_not_found(model: str) -> RequestError:
    """No agent serves this model; the name is shown back, shortened."""
    shown = model if len(model) <= 100 else model[:100] + "…"
    return RequestError(
        404,
        f"The model '{shown}' does not exist or no device agent serves it; GET /v1/models lists those there are",
        code="model_not_found",
        param="model",
    )


def drafter_not_found(draft: str, known: Sequence[str]) -> RequestError:
    """No agent that serves the model has this drafter; the name is shown back, shortened, with those there are."""
    shown = draft if len(draft) <= 100 else draft[:100] + "…"
    return RequestError(
        400,
        f"there is no drafter '{shown}' for this model; 'draft' is one of: {', '.join(known)}",
        code="invalid_value",
        param="draft",
    )


def queue_full() -> RequestError:
    """So many requests wait already that another one had better come back later."""
    return RequestError(
        429,
        "all device agents are busy and the waiting room is full; try again later",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers=retry_after(2.0),
    )


def waited_too_long(seconds: float) -> RequestError:
    """No agent came free in time."""
    return RequestError(
        503,
        f"no device agent came free within {seconds:.3g} s; try again later",
        type="server_error",
        code="overloaded",
        headers=retry_after(2.0),
    )


def no_agent(gateway: str) -> RequestError:
    """Nobody is there to answer."""
    return RequestError(
        503,
        f"no device agent is connected; start one with: trilby device --gateway {gateway}",
        type="server_error",
        code="no_agent",
        headers=retry_after(5.0),
    )


def agents_unavailable() -> RequestError:
    """Those who serve the model are stopping or cannot reach their cloud."""
    return RequestError(
        503,
        "the device agents that serve this model are stopping or cannot reach their cloud server; see GET /state",
        type="server_error",
        code="agents_unavailable",
        headers=retry_after(5.0),
    )


def draining() -> RequestError:
    """This gateway takes nothing new."""
    return RequestError(503, "this gateway is stopping", type="server_error", code="draining", headers=retry_after(2.0))


def internal() -> RequestError:
    """A bug of ours; the log has the rest, under the request's id."""
    return RequestError(500, "internal error; the log has more under this x-request-id", type="server_error",
                        code="internal_error")  # fmt: skip
