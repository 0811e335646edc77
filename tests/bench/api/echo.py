"""The least that an OpenAI-compatible server can do: uvicorn, and an answer that was made beforehand.

    PYTHONPATH=tests python -m bench.api.echo --port 8009

It reads the body and answers as the gateway with its answering agent would, streamed where the body says so: an event
for each token, all in one piece.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import uvicorn
from bench.api.answering_agent import MODEL, PROMPT_TOKENS, WORDS
from starlette.types import Receive, Scope, Send

HEAD = {"id": "chatcmpl-0123456789abcdef0123456789abcdef", "created": 1_700_000_000, "model": MODEL}
USAGE = {
    "prompt_tokens": PROMPT_TOKENS, "completion_tokens": len(WORDS), "total_tokens": PROMPT_TOKENS + len(WORDS)
}  # fmt: skip


def whole() -> bytes:
    """The answer in one piece."""
    message = {"role": "assistant", "content": "".join(WORDS), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    return json.dumps({**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}).encode()


def streamed() -> bytes:
    """The answer as events."""

    def chunk(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}

    said = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": word}) for word in WORDS)]
    events = [json.dumps(each).encode() for each in (*said, chunk({}, "length"))]
    return b"".join(b"data: %b\n\n" % each for each in (*events, b"[DONE]"))


WHOLE, STREAMED = whole(), streamed()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The application; all of its paths are the same."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    asked = json.loads(body or b"{}").get("stream")
    kind, data = (b"text/event-stream", STREAMED) if asked else (b"application/json", WHOLE)
    headers = [(b"content-type", kind), *([] if asked else [(b"content-length", str(len(data)).encode())])]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data})


def main() -> None:
    """Serve until a signal, with the same HTTP parser as the gateway."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", lifespan="off", http="h11", loop="asyncio")


if __name__ == "__main__":
    main()
