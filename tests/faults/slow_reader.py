"""A client that asks for much and reads nothing of it: it is given up in time, and holds nobody up."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from faults.judging import judge
from faults.notes import note
from faults.shapes import Asked, body_of
from installation import wait_until

RECEIVED_BYTES: Final = 4096
"""What the kernel takes for it: nearly nothing."""
TOKENS: Final = 1500
CHOICES: Final = 4
ALTERNATIVES: Final = 20
"""To each token, with their likelihoods: 10 MB in all, and the kernel holds 4 at the most."""
GIVEN_UP_WITHIN_S: Final = 150.0
READ_BYTES: Final = 2**20
READ_WITHIN_S: Final = 30.0
"""What is left of a connection that was cut off is there at once, and so is its end."""
END: Final = b"data: [DONE]"


def check_slow_reader(base: str, running: Callable[[], int], setting: str = "") -> None:
    """Others are answered beside it with transformers' tokens. Then all of its answers are given up, though its socket
    stays open and it has not read a byte: they are not over, and what it still finds has no end.

    Args:
        running: how many answers are worked on.
        setting: of the note; "": the shapes'.
    """
    asked = Asked(base)
    asked.begin()
    for name in asked.turns:  # What transformers says is found out before anything is timed.
        asked.expected(name)
    host, port = base.removeprefix("http://").removesuffix("/v1").split(":")
    body = body_of((("user", "Tell me a story about a river."),), TOKENS)
    body |= {"n": CHOICES, "logprobs": True, "top_logprobs": ALTERNATIVES, "stream": True}
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
        client.connect((host, int(port)))
        client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        wait_until(lambda: running() > 0, 30)
        began = time.monotonic()
        judge(asked, asked.answers(), began, "another client reads nothing of a long answer", setting=setting)
        wait_until(lambda: running() == 0, GIVEN_UP_WITHIN_S)
        rest = all_of(client)
        assert b" 200 OK" in rest[:20] and END not in rest, (len(rest), rest[:100], rest[-300:])
        note(setting or "plain", "a client reads nothing of its answer", "it is cut off; all of it is free again")


def all_of(client: socket.socket) -> bytes:
    """What was sent to it, up to the connection's end. Raises TimeoutError where that does not come."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)  # From here on it reads as others do.
    client.settimeout(READ_WITHIN_S)
    found = bytearray()
    with suppress(ConnectionResetError):
        while piece := client.recv(READ_BYTES):
            found += piece
    return bytes(found)
