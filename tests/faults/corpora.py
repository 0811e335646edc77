"""What is right at each door, to be made wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from bare_devices import rows
from checkpoints import DEMO
from clouds import device_hello

from wire.frames import encode
from wire.limits import PART_BYTES
from wire.message import Drain, Failed, Heartbeat
from wire.messages import AnyMessage
from wire.parts import cut_off, first_part, further_part
from wire.peer_messages import PeerNote, PeerOver, PeerPost
from wire.request_messages import (
    Accepted,
    AgentHello,
    AgentState,
    Delta,
    Done,
    Finished,
    ServedModel,
)
from wire.session_messages import (
    Close,
    Fork,
    Forward,
    Keep,
    LinkState,
    Open,
    Park,
    Resume,
    Timing,
    Truncate,
)

HIDDEN: Final = 256
"""Of the demo model."""

_LONG: Final = memoryview(bytes(3 * PART_BYTES))
_PARTS: Final = [bytes(first_part(1, _LONG)), bytes(further_part(1, _LONG, PART_BYTES)), bytes(cut_off(1))]


def _encoded(messages: Sequence[AnyMessage]) -> list[bytes]:
    return [bytes(encode(each)) for each in messages]


def device_hellos() -> list[bytes]:
    """A device's first word to its cloud."""
    return _encoded([device_hello(DEMO, 2, 0)])


def device_frames() -> list[bytes]:
    """What devices say afterwards."""
    forwards = [
        bytes(encode(Forward(1, 0, 0, 1), [rows(2, HIDDEN)])),
        bytes(encode(Forward(1, 1, 2, 1), [rows(1, HIDDEN)])),
        bytes(encode(Forward(1, 0, 0, 0, [0, 1, 1]), [rows(3, HIDDEN)])),
    ]
    verbs: list[AnyMessage] = [
        *(Open(1, 50, 4, 20), Open(2, 9), Truncate(1, 1), Keep(1, [0, 1]), Fork(2, 1, 1), Park(1), Close(1)),
        *(Resume(3, "token", 1, 2), LinkState(10**6, 10**6, 100), Timing([10], [5, 6]), Heartbeat(1, 2, 3)),
    ]
    return [*forwards, *_encoded(verbs), *_PARTS]


def agent_hellos() -> list[bytes]:
    """An agent's first word to its gateway."""
    return _encoded([AgentHello("a stranger", "", [ServedModel("other/model", 100, 1)], 1)])


def agent_frames() -> list[bytes]:
    """What agents say afterwards, though nothing was asked of this one."""
    said: list[AnyMessage] = [
        *(AgentState(0, True), Accepted(1, 5), Delta(1, 0, "text", 1), Finished(1, 0, "stop"), Done(1, 5, 2)),
        *(Failed("overloaded", "why", 1), Drain(1.0), Heartbeat(1, 2, 3)),
    ]
    return [*_encoded(said), *_PARTS]


def peer_frames(epoch: int = 1) -> list[bytes]:
    """What members say to their host."""
    said: list[AnyMessage] = [
        *(PeerPost("fits/1", b"", epoch), PeerPost("link/1/1", b"127.0.0.1 9", epoch), PeerOver(epoch, "why", 1)),
        *(PeerNote(b'{"digest":"sha256:0","dtype":""}'), Heartbeat(1, 2, 3)),
    ]
    return _encoded(said)


_TURN: Final = {"role": "user", "content": "What is 2 + 3?"}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {"messages": [_TURN], "max_tokens": 2, "temperature": 0, "stream": True, "stop": ["x"]},
    "/v1/completions": {"prompt": "Once", "max_tokens": 2, "n": 2, "logprobs": 2, "echo": True},
    "/v1/embeddings": {"input": ["one", "two"], "encoding_format": "base64"},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 16},
    "/v1/messages": {"messages": [_TURN], "max_tokens": 2},
    "/tokenize": {"prompt": "x"},
}


def http_requests(port: int) -> list[bytes]:
    """Requests of the API, whole."""
    found = [f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()
             for path in ("/health", "/v1/models", "/state", "/metrics")]  # fmt: skip
    for path, body in BODIES.items():
        content = json.dumps({"model": "trilby-demo", **body})
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        found.append(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode())
    return found


def token_messages() -> list[bytes]:
    """What clients say on the token websocket."""
    bodies = [{"messages": [_TURN], "max_tokens": 2, "temperature": 0}, {"prompt": "Once", "max_tokens": 2}]
    return [json.dumps(each).encode() for each in [*bodies, {"type": "cancel"}]]
