"""Errors that cross the wire, each with its code, and the websocket close code it maps to.

WireError                 has a code, a message for people, and what it belongs to
 +-- ConnectionFailed     the whole connection ends: the peer broke the protocol, or was refused, or is gone
 +-- SessionFailed        one session or request ends, the connection and everyone else's work go on
      +-- Crowded         it was not even sent: too much waits on this connection
LocalMistake              our own code asked the connection for something illegal; nothing was sent
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Code(str, Enum):
    """Why something failed, in one word that programs may compare."""

    # The connection ends.
    BAD_FRAME = "bad_frame"
    TOO_LARGE = "too_large"
    UNEXPECTED_MESSAGE = "unexpected_message"
    VERSION_MISMATCH = "version_mismatch"
    MODEL_MISMATCH = "model_mismatch"
    DIGEST_MISMATCH = "digest_mismatch"
    SPLIT_MISMATCH = "split_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    UNAUTHORIZED = "unauthorized"
    NAME_TAKEN = "name_taken"
    TOO_LITTLE_MEMORY = "too_little_memory"
    DISK_FAILED = "disk_failed"
    TIMEOUT = "timeout"
    LOST = "lost"
    # One session or request ends.
    SHAPE_MISMATCH = "shape_mismatch"
    NOT_FINITE = "not_finite"
    BAD_POSITION = "bad_position"
    UNKNOWN_SESSION = "unknown_session"
    DUPLICATE_SESSION = "duplicate_session"
    CREDIT_EXCEEDED = "credit_exceeded"
    SESSION_LIMIT = "session_limit"
    TOKEN_LIMIT = "token_limit"
    DRAINING = "draining"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    STAGE_LOST = "stage_lost"
    INVALID_REQUEST = "invalid_request"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    OVERLOADED = "overloaded"
    UPSTREAM_LOST = "upstream_lost"
    INTERNAL = "internal"


REFUSALS: Final = frozenset(
    {
        Code.VERSION_MISMATCH,
        Code.MODEL_MISMATCH,
        Code.DIGEST_MISMATCH,
        Code.SPLIT_MISMATCH,
        Code.DTYPE_MISMATCH,
        Code.UNAUTHORIZED,
    }
)
"""Codes that mean the two sides are set up differently: dialling again changes nothing until somebody acts."""

CLOSE_CODES: Final[dict[Code, int]] = {
    **dict.fromkeys(REFUSALS, 4409),
    Code.BAD_FRAME: 1007,
    Code.TOO_LARGE: 1009,
    Code.UNEXPECTED_MESSAGE: 1002,
    Code.UNAUTHORIZED: 4401,
    Code.TIMEOUT: 4408,
    Code.LOST: 1006,
    Code.DRAINING: 1012,
    Code.OVERLOADED: 1013,
}
"""The websocket close code for each error that ends a connection; any other ends it as 1011 (internal)."""

REPLAYABLE: Final = frozenset(
    {
        Code.LOST,
        Code.UPSTREAM_LOST,
        Code.TIMEOUT,
        Code.DRAINING,
        Code.PREEMPTED,
        Code.EVICTED,
        Code.STAGE_LOST,
        Code.SESSION_LIMIT,
        Code.UNKNOWN_SESSION,
        Code.DUPLICATE_SESSION,
        Code.BAD_POSITION,
        Code.CREDIT_EXCEEDED,
        Code.INTERNAL,
    }
)
"""Codes that end a session in one cloud server but say nothing against its rows: the device may replay them, there or
elsewhere. The others (a wrong shape, a value that is not finite, too many positions) would come again."""


CROWDED_RETRY_S: Final = 2.0
"""When somebody who found a connection crowded should come back."""


class WireError(Exception):
    """Something failed between two processes.

    ``code`` is for programs, ``message`` for people and safe to show: no prompts, ids, paths, object representations.
    """

    def __init__(self, code: Code, message: str, *, param: str | None = None, retry_after_s: float | None = None):
        super().__init__(f"{code.value}: {message}")
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class ConnectionFailed(WireError):
    """The whole connection ends with this."""

    @property
    def close_code(self) -> int:
        """The websocket close code to end with."""
        return CLOSE_CODES.get(self.code, 1011)


class SessionFailed(WireError):
    """One session or request ends with this; the connection lives."""


class Crowded(SessionFailed):
    """So much waits to be sent on this connection already that a long message had better not be added; nothing was
    sent, and the connection lives."""

    def __init__(self) -> None:
        super().__init__(Code.OVERLOADED, "too much waits to be sent on the way there", retry_after_s=CROWDED_RETRY_S)


class LocalMistake(RuntimeError):
    """Our own code asked for something the connection's state does not allow; nothing was sent."""


def code_of(name: str) -> Code:
    """Return the code of this name; of one that is not known here, since a newer peer may know more, ``internal``."""
    try:
        return Code(name)
    except ValueError:
        return Code.INTERNAL
