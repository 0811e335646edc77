"""What a member asks of another at whom its oldest keys and values lie; typed, bounded, of fixed size. Pure but for the
tensor in which it travels."""

from __future__ import annotations

from typing import Annotated, Final, Union

import msgspec
import torch

from device_agent.group.messages.heads import MAX_BATCHED, MAX_POSITIONS, MAX_ROWS

ASK_BYTES: Final = 512

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Position = Annotated[int, msgspec.Meta(ge=0, le=MAX_POSITIONS)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_POSITIONS)]


class BadRowAsk(ValueError):
    """What came is no question, or asks for what is not there: the two members do not agree."""


class _Ask(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of all."""


class StoreAsk(_Ask, frozen=True, tag=1):
    """``rows`` keys and values follow, behind the ``start`` that are there. Answered by one byte: 1, or 0 where there
    is no room and they are dropped."""

    session: _Number
    layer: _Number
    start: _Position
    rows: _Count


class FetchAsk(_Ask, frozen=True, tag=2):
    """Answered by these keys and values, which stay until they are cut."""

    session: _Number
    layer: _Number
    start: _Position
    rows: _Count


class CutAsk(_Ask, frozen=True, tag=3):
    """Those from ``position`` on are deleted, if there are any."""

    session: _Number
    layer: _Number
    position: _Position


class FreeAsk(_Ask, frozen=True, tag=4):
    """All of a session is deleted, in all layers."""

    session: _Number


class Looking(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Queries of ``rows`` positions from ``position`` on, in the first ``seen`` keys and values of a session."""

    session: _Number
    position: _Position
    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]
    seen: _Count


class AttendAsk(_Ask, frozen=True, tag=5):
    """The queries of all ``parts`` follow. Answered by their outputs, with what it takes to merge them.

    window: how many positions a row sees, its own included; 0: all before it.
    """

    layer: _Number
    window: _Position
    parts: Annotated[tuple[Looking, ...], msgspec.Meta(min_length=1, max_length=MAX_BATCHED)]

    @property
    def rows(self) -> int:
        """Of all parts."""
        return sum(part.rows for part in self.parts)


class PulseAsk(_Ask, frozen=True, tag=6):
    """Nothing for now: who hears this knows that the other lives."""


class ByeAsk(_Ask, frozen=True, tag=7):
    """Nothing will be asked any more."""


RowAsk = Union[StoreAsk, FetchAsk, CutAsk, FreeAsk, AttendAsk, PulseAsk, ByeAsk]

_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(RowAsk)
_LENGTH: Final = 2
"""Bytes that say how long a question is."""


def written(ask: RowAsk) -> torch.Tensor:
    """A question as uint8 ``[ASK_BYTES]``: its length, itself, and zeros."""
    data = _encode(ask)
    assert len(data) <= ASK_BYTES - _LENGTH
    return torch.frombuffer(
        bytearray((len(data).to_bytes(_LENGTH, "big") + data).ljust(ASK_BYTES, b"\0")), dtype=torch.uint8
    )


def read(tensor: torch.Tensor) -> RowAsk:
    """The question in such a tensor. Raises ``BadRowAsk``."""
    data = tensor.numpy().tobytes()
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    if len(data) != ASK_BYTES or end > ASK_BYTES or any(data[end:]):
        raise BadRowAsk("what came is no question about keys and values")
    try:
        ask: RowAsk = _decoder.decode(data[_LENGTH:end])
    except msgspec.MsgspecError as error:
        raise BadRowAsk(str(error)) from None
    if isinstance(ask, AttendAsk) and ask.rows > MAX_ROWS:
        raise BadRowAsk(f"{ask.rows} rows are too many for one question")
    return ask
