"""Bytes that this gateway and those who ask it have sent one another."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Message, Receive, Send


@dataclass
class Traffic:
    """Of the bodies of requests and answers, and of the messages of websockets: what was sent to them, and received."""

    sent: int = 0
    received: int = 0

    def receiving(self, receive: Receive) -> Receive:
        """Return what counts all that comes by ``receive``."""

        async def counted() -> Message:
            message = await receive()
            self.received += _size(message)
            return message

        return counted

    def sending(self, send: Send) -> Send:
        """Return what counts all that goes by ``send``."""

        async def counted(message: Message) -> None:
            self.sent += _size(message)
            await send(message)

        return counted


def _size(message: Message) -> int:
    data = message.get("body") or message.get("bytes") or message.get("text") or b""
    return len(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
