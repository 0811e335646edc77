"""Long answers, and clients of a gateway that do not read them."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from wire.request_messages import Accepted, Delta, Done, Finished

LONG = 24 * 2**20
"""Characters: more than the kernel takes for a client that does not read."""


def begin(agent: Any, asked: Any, length: int) -> None:
    """An answer of so many signs, ``2**20`` in each piece."""
    agent.post(Accepted(asked.request, 1))
    for _ in range(length // 2**20):
        agent.post(Delta(asked.request, 0, "x" * 2**20, 1))


async def read(client: socket.socket, length: int) -> None:
    """Read so many of its signs, and what is between."""
    came = 0
    while came < length:
        came += (await asyncio.get_running_loop().sock_recv(client, 2**20)).count(b"x")


async def much(agent: Any, asked: Any) -> None:
    """A script: a long answer, complete at once."""
    begin(agent, asked, LONG)
    agent.post(Finished(asked.request, 0, "stop"))
    agent.post(Done(asked.request, 1, LONG // 2**20))


def asking(gateway: Any, path: str, body: dict[str, Any]) -> socket.socket:
    """A client that has asked, and reads nothing for now."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    client.connect(("127.0.0.1", gateway.port))
    client.setblocking(False)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return client


def ends(logs: Any, event: str = "request") -> list[Any]:
    """How requests have ended so far."""
    return [line["outcome"] for line in logs if line["event"] == event]
