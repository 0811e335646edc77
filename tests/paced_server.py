"""An OpenAI-compatible server whose every time is known beforehand, so that what measures servers can be measured.

    PYTHONPATH=tests python -m paced_server --port 8009 --first-ms 100 --gap-ms 10 --slots 8

An answer has as many tokens as it may have; its first comes so long after the request has got one of the slots, each
further one so much later, by the clock and not by waits that add up. The model's name says what else happens:
"refuses" answers 429, "breaks" ends in the middle, "fails" says so in the stream, "stuck" says one word and no more,
"uncounted" reports no usage, "whole" does not stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

MODEL = "paced"
KEY = "sk-paced"


@dataclass(frozen=True)
class Pace:
    """Seconds to the first token and between tokens; answers at once, 0 for any number; the key that is asked for."""

    first_s: float = 0.02
    gap_s: float = 0.005
    slots: int = 0
    key: str = ""


class PacedServer:
    """The application; ``asked`` has all bodies that have come."""

    def __init__(self, pace: Pace) -> None:
        self.asked: list[dict[str, Any]] = []
        self._pace = pace
        self._slots: Any = asyncio.Semaphore(pace.slots) if pace.slots else nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"].removeprefix("/v1")
        headers = dict(scope["headers"])
        if path == "/health":
            return await _whole(send, 200, {})
        if self._pace.key and headers.get(b"authorization") != f"Bearer {self._pace.key}".encode():
            return await _whole(send, 401, _error("Incorrect API key provided", "invalid_api_key"))
        if path == "/models":
            return await _whole(send, 200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        data = b""
        while (message := await receive())["type"] == "http.request":
            data += message.get("body", b"")
            if not message.get("more_body"):
                break
        body = json.loads(data)
        self.asked.append(body)
        if body["model"] == "refuses":
            return await _whole(send, 429, _error("Try again later", "rate_limit_exceeded"))
        if body["model"] == "absent":
            return await _whole(send, 404, _error("There is no model 'absent'", "model_not_found"))
        async with self._slots:
            await self._answer(body, receive, send)

    async def _answer(self, body: dict[str, Any], receive: Receive, send: Send) -> None:
        kind, count = body["model"], body.get("max_tokens") or body.get("max_completion_tokens") or 16
        loop = asyncio.get_running_loop()
        began = loop.time()
        if kind == "whole":
            return await _whole(send, 200, {"choices": [{"message": {"role": "assistant", "content": "Word"}}]})
        await send(_start(200, b"text/event-stream"))
        await _event(send, _chunk({"role": "assistant", "content": ""}))
        for number in range(count):
            await asyncio.sleep(max(0.0, began + self._pace.first_s + number * self._pace.gap_s - loop.time()))
            await _event(send, _chunk({"content": "word "}))
            if kind == "stuck":
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
            if kind == "breaks":
                raise RuntimeError("as it was asked to")
            if kind == "fails":
                await _event(send, _error("The device has gone", "upstream_lost"))
                return await send({"type": "http.response.body", "body": b""})
        await _event(send, _chunk({}, "length"))
        if kind != "uncounted":
            prompt = sum(len(str(turn["content"]).split()) for turn in body["messages"])
            usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
            await _event(send, {"id": "1", "object": "chat.completion.chunk", "choices": [], "usage": usage})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": [choice]}


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def _start(status: int, kind: bytes) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]}


async def _event(send: Send, value: dict[str, Any]) -> None:
    data = f"data: {json.dumps(value)}\n\n".encode()
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _whole(send: Send, status: int, value: dict[str, Any]) -> None:
    await send(_start(status, b"application/json"))
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--first-ms", type=float, default=100.0)
    parser.add_argument("--gap-ms", type=float, default=10.0)
    parser.add_argument("--slots", type=int, default=0)
    options = parser.parse_args()
    app = PacedServer(Pace(options.first_ms / 1e3, options.gap_ms / 1e3, options.slots))
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="critical", lifespan="off")


if __name__ == "__main__":
    main()
