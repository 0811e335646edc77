"""The server-sent events of one streamed chat, from bytes as they come. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

MAX_LINE_BYTES: Final = 2**20
"""No event of a chat is near it; beyond it what answers is no such stream."""

MOST_SHOWN: Final = 200
"""Characters of a server's message that are kept."""


class NoStream(Exception):
    """What came is no stream of a chat."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None

    def says_something(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.refusal or self.tool_calls)


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode


class Events:
    """What a stream has said so far.

    Attributes:
        prompt_tokens, tokens: as the server counts them; None until it has said so.
        error: of the event that said that the answer failed; None: there was none.
        finished: the answer has come to its end.
    """

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.tokens: int | None = None
        self.error: tuple[str, str] | None = None
        self.finished = False
        self._rest = b""

    def take(self, data: bytes) -> int:
        """Bytes that have come; returns how many of the events now complete have something of the answer.

        Raises:
            NoStream: this is something else.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise NoStream
        return sum(self._take(line) for line in lines if line.startswith(b"data:"))

    def _take(self, line: bytes) -> bool:
        data = line[5:].strip()
        if data == b"[DONE]":
            self.finished = True
            return False
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoStream from error
        if chunk.error is not None:
            self.error = told(chunk.error)
        if chunk.usage is not None:
            self.prompt_tokens, self.tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        self.finished = self.finished or any(choice.finish_reason for choice in chunk.choices)
        return any(choice.delta.says_something() for choice in chunk.choices)


def told(error: Any) -> tuple[str, str]:
    """Of an error as OpenAI has it, or whatever stands in its place: its name, and its message."""
    if not isinstance(error, dict):
        return "", str(error)[:MOST_SHOWN]
    name = error.get("code") or error.get("type") or ""
    return str(name)[:MOST_SHOWN], str(error.get("message") or "")[:MOST_SHOWN]
