"""One message and its tensors as bytes, and back.

    offset  size  what
    0       2     b"TL"
    2       1     protocol version
    3       1     number of tensors
    4       4     header length h, little-endian
    8       4     number of this websocket message on its connection and way, from 0, modulo 2**32, little-endian
    12      h     header: one message (msgpack)
    12+h    ...   tensor descriptions, each: dtype (1), dimensions (1), sizes (4 each, little-endian); where the highest
                  bit of dtype is set the tensor is packed, and its bytes' number (4, little-endian) follows
    then          tensor bytes, little-endian, row-major, one after the other, and nothing more

A longer frame travels in parts, see ``parts.py``; its own number is 0 then, since each part has one. Where both sides
have agreed on it, frames are padded, see ``padding.py``.

Everything is checked against the limits and against the bytes that are really there before anything is allocated; a
decoded tensor is a view into the received bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import msgspec

from wire.errors import Code, ConnectionFailed
from wire.limits import ITEM_BYTES, MAX_DIMENSIONS, MAX_TENSORS, PROTOCOL_VERSION, LinkLimits
from wire.messages import AnyMessage
from wire.padding import PADDED, Padding

MAGIC: Final = b"TL"
PREFIX: Final = struct.Struct("<2sBBII")
_NUMBER: Final = struct.Struct("<I")
_NUMBER_AT: Final = 8
_DTYPES: Final = tuple(ITEM_BYTES)
_PACKED: Final = 0x80
"""Added to the number of a dtype."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[AnyMessage]] = msgspec.msgpack.Decoder(AnyMessage)


@dataclass(frozen=True)
class Tensor:
    """A tensor on the wire: dtype name, shape, and its bytes (little-endian, row-major), or what they are packed to.

    Packed bytes are fewer, and as they came: whoever wants the tensor unpacks them.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview | bytes | bytearray
    packed: bool = False


@dataclass(frozen=True)
class Frame:
    """A received message, the tensors that came with it, and its number on its connection."""

    message: AnyMessage
    tensors: tuple[Tensor, ...] = ()
    number: int = 0


def encode(message: AnyMessage, tensors: Sequence[Tensor] = (), number: int = 0) -> bytearray:
    """The bytes of one frame, which ``stamp`` may number later. Tensor bytes are copied once, into the frame."""
    header = _ENCODER.encode(message)
    parts: list[bytes | memoryview | bytearray] = [
        PREFIX.pack(MAGIC, PROTOCOL_VERSION, len(tensors), len(header), number),
        header,
    ]
    for tensor in tensors:
        dimensions = len(tensor.shape)
        dtype = _DTYPES.index(tensor.dtype) | (_PACKED if tensor.packed else 0)
        parts.append(struct.pack(f"<BB{dimensions}I", dtype, dimensions, *tensor.shape))
        if tensor.packed:
            parts.append(struct.pack("<I", len(tensor.data)))
    parts.extend(tensor.data for tensor in tensors)
    return bytearray().join(parts)


def stamp(data: bytearray, number: int) -> None:
    """Number a websocket message that is about to leave: a frame, or a part of one."""
    _NUMBER.pack_into(data, _NUMBER_AT, number)


def header_bytes(data: bytes | bytearray) -> int:
    """Bytes of the header of a frame that ``encode`` has made."""
    return int(PREFIX.unpack_from(data)[3])


def read_prefix(data: bytes | bytearray) -> tuple[int, int, int]:
    """What begins every websocket message: its kind (the number of tensors of a whole frame, else one of ``parts.py``),
    a number that its kind gives a meaning, and its own number.

    Raises:
        ConnectionFailed: ``version_mismatch`` or ``bad_frame``.
    """
    if len(data) < PREFIX.size:
        raise bad_frame("it is shorter than a frame prefix")
    magic, version, kind, value, number = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise bad_frame("it does not begin as a frame does")
    if version != PROTOCOL_VERSION:
        raise ConnectionFailed(
            Code.VERSION_MISMATCH,
            f"the peer speaks protocol version {version}, this side {PROTOCOL_VERSION}: install the same release",
        )
    return kind, value, number


def decode(
    data: bytes | bytearray,
    limits: LinkLimits,
    only: Container[int] | None = None,
    padding: Padding | None = None,
) -> Frame:
    """The frame in ``data``.

    Args:
        only: tags of the messages that may come now, others are not even decoded; None: all of them.
        padding: how frames may be padded here; None: none is.

    Raises:
        ConnectionFailed: ``version_mismatch``, ``too_large``, ``unexpected_message``, or ``bad_frame`` with what is
            wrong; nothing else ever.
    """
    if len(data) > limits.frame_bytes:
        raise ConnectionFailed(Code.TOO_LARGE, f"a frame of {len(data)} bytes, the limit is {limits.frame_bytes}")
    count, header_size, number = read_prefix(data)
    view = memoryview(data)
    if padding is not None and count & PADDED:
        count, view = count & ~PADDED, view[: _whole(data, padding)]
    if header_size > limits.header_bytes:
        raise ConnectionFailed(Code.TOO_LARGE, f"a header of {header_size} bytes, the limit is {limits.header_bytes}")
    if count > MAX_TENSORS:
        raise bad_frame(f"it says it has {count} tensors, the limit is {MAX_TENSORS}")
    end = PREFIX.size + header_size
    if end > len(view):
        raise bad_frame("its header is cut off")
    if only is not None and _tag(view[PREFIX.size : end]) not in only:
        raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, "this message does not come before the hello is over")
    try:
        message = _DECODER.decode(view[PREFIX.size : end])
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError):
        raise bad_frame("its header is no message of this protocol") from None
    descriptions, end = _descriptions(view, count, end)
    tensors = []
    for dtype, shape, packed in descriptions:
        size = prod(shape) * ITEM_BYTES[dtype]
        if packed is not None:
            if not packed < size <= limits.frame_bytes:
                raise bad_frame(f"a tensor of shape {list(shape)} is packed to {packed} bytes")
            size = packed
        begin, end = end, end + size
        if end > len(view):
            raise bad_frame(f"a tensor of shape {list(shape)} is longer than the frame")
        tensors.append(Tensor(dtype, shape, view[begin:end], packed is not None))
    if end != len(view):
        raise bad_frame(f"{len(view) - end} bytes follow its last tensor")
    return Frame(message, tuple(tensors), number)


def _whole(data: bytes | bytearray, padding: Padding) -> int:
    """Bytes of a padded frame without its padding."""
    try:
        return padding.whole(data)
    except ValueError as error:
        raise bad_frame(str(error)) from None


_Description = tuple[str, tuple[int, ...], "int | None"]
"""Dtype, shape, and the bytes of one that is packed."""


def _descriptions(data: memoryview, count: int, offset: int) -> tuple[list[_Description], int]:
    found: list[_Description] = []
    for _ in range(count):
        if offset + 2 > len(data):
            raise bad_frame("a tensor description is cut off")
        dtype, dimensions = data[offset] & ~_PACKED, data[offset + 1]
        is_packed = bool(data[offset] & _PACKED)
        if dtype >= len(_DTYPES):
            raise bad_frame(f"unknown tensor dtype {dtype}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise bad_frame(f"a tensor of {dimensions} dimensions, between 1 and {MAX_DIMENSIONS} are allowed")
        numbers = dimensions + is_packed
        if offset + 2 + 4 * numbers > len(data):
            raise bad_frame("a tensor description is cut off")
        shape = struct.unpack_from(f"<{numbers}I", data, offset + 2)
        if 0 in shape:
            raise bad_frame("a tensor without elements")
        found.append((_DTYPES[dtype], shape[:dimensions], shape[-1] if is_packed else None))
        offset += 2 + 4 * numbers
    return found, offset


def _tag(header: memoryview) -> int | None:
    """The tag of the message in a header, None where there is none: an array's first item, a small integer."""
    at = 1 if header and header[0] & 0xF0 == 0x90 else 3 if header and header[0] == 0xDC else len(header)
    return header[at] if at < len(header) else None


def bad_frame(why: str) -> ConnectionFailed:
    """That what came is no frame of this protocol."""
    return ConnectionFailed(Code.BAD_FRAME, f"a frame was refused: {why}")
