"""A streamed answer as a client sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

ANSWER_WITHIN_S = 90.0
"""Between two events of a stream; the gateway sends keep-alives more often than that."""


@dataclass
class Answer:
    """What a client saw of one streamed answer.

    Attributes:
        pieces: the text of each chunk, and ``times`` when it came (``time.monotonic``).
        tokens, drafted: its tokens, and those of them that were drafted.
        error: the error that ended it, {} for none; ``done`` whether it ended as a complete answer does.
    """

    pieces: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    reason: str | None = None
    tokens: int = 0
    drafted: int = 0
    error: dict[str, Any] = field(default_factory=dict)
    done: bool = False

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)

    @property
    def outcome(self) -> tuple[str, str | None, int, dict[str, Any], bool]:
        """All that must be the same whatever happened on the way."""
        return self.text, self.reason, self.tokens, self.error, self.done


def stream_answer(
    base: str,
    body: dict[str, Any],
    seen: Callable[[int], None] = lambda count: None,
    client: httpx.Client | None = None,
) -> Answer:
    """Stream one chat answer; ``seen`` is called with the count of pieces when the answer begins (0) and
    after each piece. A ``client`` has connections open already."""
    answer = Answer()
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    url = base + "/chat/completions"
    streamed = partial(httpx.stream, trust_env=False) if client is None else client.stream
    try:
        with streamed("POST", url, json=body, timeout=ANSWER_WITHIN_S) as response:
            if response.status_code != 200:
                answer.error = json.loads(response.read())["error"]
                return answer
            seen(0)
            for line in response.iter_lines():
                if line.startswith("data: "):
                    _take(answer, line[6:], seen)
    except httpx.HTTPError as broken:
        answer.error = answer.error or {"message": type(broken).__name__}
    return answer


def _take(answer: Answer, data: str, seen: Callable[[int], None]) -> None:
    if data == "[DONE]":
        answer.done = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        answer.error = chunk["error"]
        return
    if usage := chunk.get("usage"):
        answer.tokens = usage["completion_tokens"]
        answer.drafted = (usage.get("completion_tokens_details") or {}).get("accepted_prediction_tokens") or 0
    for choice in chunk["choices"]:
        answer.reason = choice["finish_reason"] or answer.reason
        if choice["delta"].get("content"):
            answer.times.append(time.monotonic())
            answer.pieces.append(choice["delta"]["content"])
            seen(len(answer.pieces))
