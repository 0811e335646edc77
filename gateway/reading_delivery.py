"""From what was read to bytes at the client. A long answer is encoded input by input, so that nobody waits for it."""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from gateway.answer import Answer, Complete, Event
from gateway.delivery import Delivery, Desk, Outlet, piece_of, start_of
from gateway.reading_request import ReadAsk
from gateway.reading_schema import ClassesHead, ClassesItem, EmbeddingItem, EmbeddingsHead, ReadUsage
from wire.reading_messages import Vector

_encode: Final = msgspec.json.Encoder().encode


class ReadingDelivery(Delivery):
    """The response to a request whose inputs are read: one object, its list in the order of the inputs."""

    def __init__(self, desk: Desk, ask: ReadAsk, request_id: str, began: float) -> None:
        super().__init__(desk, ask, request_id, began)
        self._ask = ask

    async def _send_whole(self, events: Sequence[Event], model: str, outlet: Outlet) -> None:
        complete = events[-1]
        assert isinstance(complete, Complete)
        usage = ReadUsage(complete.prompt_tokens, complete.prompt_tokens)
        head: EmbeddingsHead = EmbeddingsHead(model, usage)
        if self._ask.endpoint == "classify":
            head = ClassesHead(model, usage, f"classify-{self._request_id}", int(time.time()))
        await outlet.send(start_of({"content-type": "application/json"}))
        for piece in list_of(told(self._ask, events), head):
            await outlet.send(piece_of(piece))
        await outlet.send(piece_of(b"", last=True))

    async def _stream(self, answer: Answer, outlet: Outlet) -> None:
        raise AssertionError("what is read is not streamed")


def told(ask: ReadAsk, events: Iterable[Event]) -> Iterator[EmbeddingItem | ClassesItem]:
    """Return what the client gets for each input, in their order."""
    vectors = sorted((each for each in events if isinstance(each, Vector)), key=lambda each: each.index)
    for vector in vectors:
        if ask.endpoint == "embeddings":
            text = base64.b64encode(vector.data).decode() if ask.as_base64 else numbers(vector.data)
            yield EmbeddingItem("embedding", vector.index, text)
        else:
            chances = numbers(vector.data)
            yield ClassesItem(vector.index, vector.label, chances, len(chances))


def numbers(data: bytes) -> list[float]:
    """Return little-endian float32 as numbers."""
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def list_of(items: Iterable[EmbeddingItem | ClassesItem], head: EmbeddingsHead) -> Iterator[bytes]:
    """Return the pieces of the JSON object that has the ``items`` as its list and the members of ``head`` behind it."""
    yield b'{"object":"list","data":['
    for at, item in enumerate(items):
        yield b"," * (at > 0) + _encode(item)
    yield b"]," + _encode(head)[1:]
