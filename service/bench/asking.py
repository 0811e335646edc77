"""One request of a load: sent, its answer timed as it comes, and what became of it."""

from __future__ import annotations

import ssl
import time
from contextlib import aclosing
from typing import Any, Final

import httpx
import msgspec

from service.api_server import TIMEOUT, unreachable
from service.bench.asked import Asked
from service.bench.events import Events, NoStream, told

KEPT_OPEN_S: Final = 4.0
"""A connection that nobody has used for so long is not used again: uvicorn closes it after 5 s, and a request that is
on its way then is lost."""

MAX_ERROR_BYTES: Final = 64 * 2**10

_encode: Final = msgspec.json.Encoder().encode


class Connections:
    """The connections to a server, each with one request at a time: as many as there are open requests.

    Each has a client of its own, since httpx looks through all connections of a client whenever a request comes or
    ends, which is felt from some hundred on. An async context manager.
    """

    def __init__(self, base: str, headers: dict[str, str], verify: ssl.SSLContext | bool) -> None:
        self._base = base
        self._headers = {**headers, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        # Loading the usual CAs takes 20 ms: once, and where there is anything to check.
        plain = not base.startswith("https:")
        usual = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else httpx.create_ssl_context()
        self._verify = verify if isinstance(verify, ssl.SSLContext) else usual
        self._free: list[httpx.AsyncClient] = []

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *error: object) -> None:
        while self._free:
            await self._free.pop().aclose()

    async def ask(self, asked: Asked, body: dict[str, Any], began: float) -> None:
        """Send a request and take its answer; whatever comes of it is noted in ``asked``.

        began: when the load has, by ``time.perf_counter``.
        """
        client = self._free.pop() if self._free else self._new()
        request = client.build_request("POST", "/chat/completions", content=_encode(body))
        asked.sent = time.perf_counter() - began
        good = False
        try:
            response = await client.send(request, stream=True)
            async with aclosing(response):
                if response.status_code == 200:
                    await _listen(response, asked, began)
                else:
                    await _refused(response, asked)
            asked.ended = time.perf_counter() - began
            good = True
        except (httpx.HTTPError, NoStream) as error:
            asked.ended = time.perf_counter() - began
            if isinstance(error, NoStream):
                asked.error = "no stream of an answer"
            else:
                asked.error, asked.reason = type(error).__name__, unreachable(self._base, error)
        finally:
            if good:
                self._free.append(client)
            else:
                await client.aclose()

    def _new(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._base, headers=self._headers, timeout=TIMEOUT, trust_env=False,
            verify=self._verify, limits=httpx.Limits(max_connections=1, keepalive_expiry=KEPT_OPEN_S),
        )  # fmt: skip


async def _listen(response: httpx.Response, asked: Asked, began: float) -> None:
    events = Events()
    async for data in response.aiter_raw():
        now = time.perf_counter() - began
        if said := events.take(data):
            asked.times.append(now)
            asked.events += said
    asked.prompt_tokens, asked.tokens = events.prompt_tokens, events.tokens
    if events.error is not None:
        name, asked.reason = events.error
        asked.error = f"failed while it was answered: {name or 'error'}"
    elif not events.finished:
        asked.error = "broken off"


async def _refused(response: httpx.Response, asked: Asked) -> None:
    data = b""
    async for piece in response.aiter_raw():
        data += piece
        if len(data) > MAX_ERROR_BYTES:
            break
    name = ""
    try:
        found = msgspec.json.decode(data)
        name, asked.reason = told(found["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        pass
    asked.error = f"{response.status_code} {name}".strip()
