"""Strangers and broken peers at the doors of real processes: each is told why and closed out, or its one session ends,
and who asks next is answered with transformers' tokens.

Rows S1 to S9, S14 and S15 of ``docs/results/faults.md``; what bodies of the API may do is in ``test_bad_input.py``.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import threading
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import httpx
import numpy as np
import psutil
import pytest
from bare_devices import news, rows
from checkpoints import DEMO
from clouds import device_hello
from faults.notes import note
from faults.shapes import body_of, wanted
from installation import Installation
from msgspec.structs import replace
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from wire.connection import Role
from wire.errors import Code
from wire.frames import Tensor, encode
from wire.limits import CLOUD_LINK, HELLO_WITHIN_S, MESSAGE_BYTES
from wire.message import Failed
from wire.messages import AnyMessage
from wire.request_messages import AgentHello, ServedModel
from wire.session_messages import Forward, Open, Resume
from wire.stream import dial

pytestmark = [pytest.mark.system, pytest.mark.slow]

TURNS: Final = (("user", "Who found the key?"),)
TOKENS: Final = 16
HIDDEN: Final = 256
FLAT_BYTES: Final = 16 * 2**20
GOES_WITHIN_S: Final = HELLO_WITHIN_S + 3.0
"""Who says nothing, on any machine; 10 s is the limit."""
DOORS: Final = ("cloud", "gateway")


def archive() -> bytes:
    """What torch.save writes begins so."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data.pkl", b"\x80\x02}q\x00.")
    return buffer.getvalue()


def objects() -> bytes:
    """The beginning of a file of numpy's that holds objects."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    return buffer.getvalue()


def hello(door: str, **changes: Any) -> AnyMessage:
    """Of somebody who belongs there."""
    if door == "cloud":
        return replace(device_hello(DEMO, 2, 0), **changes)
    return replace(AgentHello("a stranger", "", [ServedModel("other/model", 100, 1)], 1), **changes)


def forward(shape: tuple[int, ...], size: int, number: int = 2) -> bytes:
    """Rows of a shape, with so many bytes."""
    return bytes(encode(Forward(1, 0, 0, 1), [Tensor("float32", shape, bytes(size))], number))


def opened(*after: bytes) -> Callable[[str], list[bytes]]:
    """A device's hello and an open session, and what comes behind."""
    return lambda door: [bytes(encode(hello(door))), bytes(encode(Open(1, 50), (), 1)), *after]


FORMATS: Final = {
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94",
    "zip": archive(),
    "numpy": objects(),
    "safetensors": (64).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "random bytes": os.urandom(200),
    "nothing": b"",
}
Frames = Callable[[str], list[bytes]]
ATTACKS: Final[dict[tuple[str, str], tuple[tuple[str, ...], Frames, tuple[int, ...]]]] = {
    **{("S1", name): (DOORS, lambda _, data=data: [data], (1007,)) for name, data in FORMATS.items()},  # type: ignore[misc]
    ("S2", "dimensions whose product overflows"): (("cloud",), opened(forward((2**31, 2**31, 2, 2), 8)), (1007,)),
    ("S2", "gigabytes announced"): (("cloud",), opened(forward((2**32 - 1,), 8)), (1007,)),
    ("S2", "a payload too short"): (("cloud",), opened(forward((2, HIDDEN), 4 * HIDDEN)), (1007,)),
    ("S2", "a payload too long"): (("cloud",), opened(forward((1, HIDDEN), 8 * HIDDEN)), (1007,)),
    ("S2", "no dimension is 0"): (("cloud",), opened(forward((0, HIDDEN), 0)), (1007,)),
    ("S3", "other weights"): (("cloud",), lambda d: [bytes(encode(hello(d, digest="sha256:other")))], (4409,)),
    ("S3", "another model"): (("cloud",), lambda d: [bytes(encode(hello(d, model="other")))], (4409,)),
    ("S3", "other layers"): (("cloud",), lambda d: [bytes(encode(hello(d, first_layer=3)))], (4409,)),
    ("S3", "another dtype"): (("cloud",), lambda d: [bytes(encode(hello(d, dtype="bfloat16")))], (4409,)),
    ("S5", "a message too large"): (DOORS, lambda _: [bytes(MESSAGE_BYTES + 1)], (1009, 1006, 1007)),
    ("S5", "very many empty messages"): (DOORS, lambda _: [b""] * 10_000, (1007,)),
    ("S6", "work before the hello"): (DOORS, lambda _: [bytes(encode(Open(1, 9)))], (1002,)),
    ("S7", "a wrong token"): (("gateway",), lambda d: [bytes(encode(hello(d, credential="guess")))], (4401,)),
    ("S9", "a frame twice"): (("cloud",), opened(forward((1, HIDDEN), 4 * HIDDEN, 1)), (1007,)),
    ("S9", "a gap"): (("cloud",), opened(forward((1, HIDDEN), 4 * HIDDEN, 3)), (1007,)),
}
"""Row and name: at which doors, what is sent, and with which codes the connection is closed."""
CASES: Final = [(*key, door) for key, (doors, _, _) in ATTACKS.items() for door in doors]


def port_of(installation: Installation, door: str) -> int:
    """Where it listens."""
    return installation.cloud_port if door == "cloud" else installation.gateway_port


def check_normal(installation: Installation, row: str, tried: str, saw: str) -> None:
    """Who asks next is answered as ever. Makes a note."""
    reply = httpx.post(
        f"{installation.base}/chat/completions", json=body_of(TURNS, TOKENS), timeout=60, trust_env=False
    ).json()
    text, expected = reply["choices"][0]["message"]["content"], wanted(TURNS, TOKENS)
    note("", f"{row}: {tried}", saw, compared=TOKENS, wrong=int(text != expected))
    assert text == expected


@pytest.mark.parametrize(("row", "name", "door"), CASES, ids=lambda each: each.replace(" ", "-"))
async def test_who_speaks_wrongly_is_closed_out(row: str, name: str, door: str, installation: Installation) -> None:
    """With the code that says why, without the process growing; who asks next is answered as ever."""
    _, frames, codes = ATTACKS[row, name]
    process = (installation.cloud if door == "cloud" else installation.gateway).process
    assert process is not None
    before = psutil.Process(process.pid).memory_info().rss
    url = f"ws://127.0.0.1:{port_of(installation, door)}/device"
    async with connect(url, compression=None, max_size=None, proxy=None) as websocket:
        with suppress(ConnectionClosed, ConnectionError):
            first, *rest = frames(door)
            await websocket.send(first)
            if rest and first:  # Nothing else may come before the welcome.
                await websocket.recv()
            for each in rest:
                await websocket.send(each)
        await websocket.wait_closed()
        assert websocket.close_code in codes
    assert psutil.Process(process.pid).memory_info().rss - before < FLAT_BYTES
    check_normal(installation, row, f"{name}, at the {door}", f"closed with {websocket.close_code}")


@pytest.mark.parametrize("door", DOORS)
async def test_compression_is_not_to_be_had(door: str, installation: Installation) -> None:
    """S5: who asks for it gets none, so that no message unpacks to more than it is."""
    async with connect(f"ws://127.0.0.1:{port_of(installation, door)}/device", compression="deflate", proxy=None) as it:
        assert it.response is not None and "Sec-WebSocket-Extensions" not in it.response.headers
    check_normal(installation, "S5", f"deflate offered to the {door}", "it is not taken")


@pytest.mark.parametrize("door", DOORS)
async def test_who_says_nothing_goes(door: str, installation: Installation) -> None:
    """S6: a hundred sockets that say nothing, of one address: the last of them goes within 10 s, and meanwhile who asks
    is answered."""
    url = f"ws://127.0.0.1:{port_of(installation, door)}/device"
    silent = [await connect(url, proxy=None, close_timeout=1) for _ in range(100)]
    check_normal(installation, "S6", f"a hundred silent sockets at the {door}", "who asks is answered")
    await asyncio.wait_for(silent[-1].wait_closed(), GOES_WITHIN_S)
    assert silent[-1].close_code == 4408
    for each in silent:
        await each.close()


@pytest.mark.parametrize(
    ("row", "name", "message", "tensor", "code"),
    [
        ("S3", "another width", Forward(1, 0, 0, 1), rows(2, HIDDEN - 1), Code.SHAPE_MISMATCH),
        ("S4", "rows with NaN", Forward(1, 0, 0, 1), rows(2, HIDDEN, fill=float("nan")), Code.NOT_FINITE),
        ("S4", "rows with infinity", Forward(1, 0, 0, 1), rows(2, HIDDEN, fill=float("inf")), Code.NOT_FINITE),
        ("S8", "a guessed session", Resume(2, "guess", 1, 0), None, Code.UNKNOWN_SESSION),
        ("S9", "a stale position", Forward(1, 0, 7, 1), rows(2, HIDDEN), Code.BAD_POSITION),
    ],
    ids=lambda each: each.replace(" ", "-") if isinstance(each, str) else None,
)
async def test_a_session_ends_alone(
    row: str, name: str, message: AnyMessage, tensor: Tensor | None, code: Code, installation: Installation
) -> None:
    """With a typed error; its connection goes on, and so does everybody else."""
    async with dial(f"ws://127.0.0.1:{installation.cloud_port}/device", Role.DEVICE, CLOUD_LINK) as stream:
        stream.post(hello("cloud"))
        await stream.receive()
        stream.post(Open(1, 50))
        stream.post(message, [] if tensor is None else [tensor])
        failed = await news(stream)
        assert isinstance(failed, Failed) and failed.code == code.value, failed
        stream.post(Open(9, 50))
        stream.post(Forward(9, 0, 0, 1), [rows(2, HIDDEN)])
        while getattr(await news(stream), "session", None) != 9:
            pass
        check_normal(installation, row, name, f"that session ends: {code.value}")


def test_nothing_is_fetched(installation: Installation) -> None:
    """S14: an image's address in a message, and a model's name that is a path, are refused; nobody is dialled."""
    came: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(3)

        def listen() -> None:
            with suppress(TimeoutError, OSError):
                listener.accept()[0].close()
                came.append(True)

        thread = threading.Thread(target=listen)
        thread.start()
        port = listener.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/x.png", "file:///etc/passwd", "http://169.254.169.254/latest"):
            parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
            body = {**body_of(TURNS, 4), "messages": [{"role": "user", "content": parts}]}
            reply = httpx.post(f"{installation.base}/chat/completions", json=body, timeout=30, trust_env=False)
            assert reply.status_code == 400 and reply.json()["error"]["message"]
        body = {**body_of(TURNS, 4), "model": "../../etc/passwd"}
        reply = httpx.post(f"{installation.base}/chat/completions", json=body, timeout=30, trust_env=False)
        assert reply.status_code == 404
        thread.join()
    assert not came
    check_normal(installation, "S14", "addresses of images, a path as a model", "400 and 404; nobody is dialled")


async def test_pages_of_others_get_nothing(installation: Installation) -> None:
    """S15: a websocket with a foreign Origin, and a name of the server that is not its own, are refused."""
    for door, path in (("cloud", "/device"), ("gateway", "/device"), ("gateway", "/v1/stream")):
        url = f"ws://127.0.0.1:{port_of(installation, door)}{path}"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, origin="https://evil.example", proxy=None)  # type: ignore[arg-type]
        assert refused.value.response.status_code == 403
    for door in DOORS:
        url = f"http://127.0.0.1:{port_of(installation, door)}/metrics"
        async with httpx.AsyncClient(trust_env=False) as client:
            reply = await client.get(url, headers={"Host": "evil.example"})
        assert reply.status_code in (400, 403, 421)
    check_normal(installation, "S15", "a foreign page's websocket, a foreign Host", "403")
