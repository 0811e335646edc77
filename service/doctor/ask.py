"""One question by HTTP to a server that may be anything: bounded in time and length."""

from __future__ import annotations

import json
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final

import httpx

from service.doctor.finding import sentence
from service.doctor.place import Place
from tls.why import cause, why

WITHIN_S: Final = 5.0
"""Time for one answer, of a server that is busy too."""

MAX_ANSWER_BYTES: Final = 2**20
"""Of ``/state``: some hundred bytes for each of a few hundred agents."""


class NoAnswer(Exception):
    """Nothing came that is HTTP; ``seen`` says what did, ``todo`` what to do."""

    def __init__(self, seen: str, todo: str) -> None:
        super().__init__(seen)
        self.seen, self.todo = seen, todo


@dataclass(frozen=True)
class Answer:
    """What came.

    Attributes:
        date: its Date header; empty where it has none.
        sent, got: when it was asked and when its headers were here, seconds since 1970 by this machine's clock.
    """

    status: int
    body: bytes
    date: str
    sent: float
    got: float

    @property
    def facts(self) -> dict[str, Any]:
        """The JSON object in it; an empty one where there is none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Asker:
    """Asks one server.

    Attributes:
        context: of TLS; None: the server is dialled without.
        api_key: shown where it is not empty.
    """

    place: Place
    context: ssl.SSLContext | None = None
    api_key: str = ""

    async def get(self, path: str) -> Answer:
        """One GET. Raises ``NoAnswer``."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        body, sent = bytearray(), time.time()
        # Without TLS there is nothing to verify, and reading the system's CAs takes 20 ms.
        verify: ssl.SSLContext | bool = self.context if self.context is not None else False
        try:
            async with (
                httpx.AsyncClient(timeout=WITHIN_S, trust_env=False, verify=verify) as client,
                client.stream("GET", self.place.http + path, headers=headers) as reply,
            ):
                got = time.time()
                async for part in reply.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        break
                return Answer(reply.status_code, bytes(body), reply.headers.get("date", ""), sent, got)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _no_answer(error, self.place) from error


def _no_answer(error: Exception, place: Place) -> NoAnswer:
    broken = cause(error)
    if broken is not None:
        reason, _, todo = why(broken, dialled=True).partition(": ")
        return NoAnswer(f"no TLS: {reason}", sentence(todo) or "Its log says what it has against this side.")
    if isinstance(error, httpx.TimeoutException):
        todo = "It may be busy, stopped (kill -STOP) or something else: look at it on its own machine."
        return NoAnswer(f"it takes connections, and answers nothing within {WITHIN_S:g} s", todo)
    if place.secure:
        todo = "It may want a certificate of this side (--tls-cert), or have something against it: its log says what."
    else:
        todo = "Where it has a --tls-cert, dial wss://; else something that is not Trilby listens there."
    return NoAnswer(f"what listens there does not answer HTTP ({type(error).__name__})", todo)
