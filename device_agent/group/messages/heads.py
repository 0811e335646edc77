"""What the portal tells every member, in one order for all: which step comes, and what becomes of sessions.

A head is a few bytes of msgpack in a tensor of fixed size, so whoever receives it knows its length before it comes.
"""

from __future__ import annotations

from typing import Annotated, Final, Union

import msgspec
import torch

from device_agent.planning.trials import Manner

HEAD_BYTES: Final = 288

MAX_ROWS: Final = 4096
"""Rows of one step."""

MAX_BATCHED: Final = 15
"""Sessions whose rows one step has."""

MAX_TEXTS: Final = 64
"""Texts that one step reads."""

MAX_KEPT_BYTES: Final = 240
"""Of what one head says of the heads that a session computes."""

MAX_PLAN_BYTES: Final = 2**22
"""Of a written plan that one head announces."""

MAX_POSITIONS: Final = 2**24
"""Of one session."""

_Session = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Position = Annotated[int, msgspec.Meta(ge=0, le=MAX_POSITIONS)]


class BadGroupHead(ValueError):
    """What came is no head, or says what cannot be: the portal and this member do not agree."""


class _GroupHead(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of all."""


class OpenHead(_GroupHead, frozen=True, tag=1):
    """A session begins that reaches ``positions`` at most; a number is another session's never."""

    session: _Session
    positions: _Position


class RowsHead(_GroupHead, frozen=True, tag=2):
    """``rows`` new positions from ``position`` on; the portal wants the outputs of the last ``want``."""

    session: _Session
    position: _Position
    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]
    want: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]

    @property
    def sessions(self) -> int:
        """Whose rows they are."""
        return 1


class BatchHead(_GroupHead, frozen=True, tag=9):
    """New positions of several sessions in one step, one behind the other; the portal wants all outputs."""

    parts: Annotated[tuple[RowsHead, ...], msgspec.Meta(min_length=2, max_length=MAX_BATCHED)]

    @property
    def position(self) -> int:
        """The last at which one of them begins."""
        return max(part.position for part in self.parts)

    @property
    def rows(self) -> int:
        """Of all sessions."""
        return sum(part.rows for part in self.parts)

    @property
    def want(self) -> int:
        """All of them."""
        return self.rows

    @property
    def sessions(self) -> int:
        """How many there are."""
        return len(self.parts)


class ReadHead(_GroupHead, frozen=True, tag=8):
    """Whole texts are read, so many rows of each, one behind the other; all outputs are wanted and nothing is kept."""

    lengths: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)], ...], msgspec.Meta(min_length=1, max_length=MAX_TEXTS)
    ]

    @property
    def rows(self) -> int:
        """Of all texts."""
        return sum(self.lengths)

    @property
    def want(self) -> int:
        """All of them."""
        return self.rows

    @property
    def position(self) -> int:
        """Texts are whole."""
        return 0

    @property
    def sessions(self) -> int:
        """Nothing is kept."""
        return 0


class SourceHead(_GroupHead, frozen=True, tag=10):
    """A session that has begun is about a text: ``rows`` rows of it follow, as an encoder gives them."""

    session: _Session
    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]


class KeepHead(_GroupHead, frozen=True, tag=12):
    """A session that has begun computes only some heads of some layers, for as long as it lives.

    Attributes:
        layer: the first of them, of those that go on with sessions.
        bits: of each layer so many bytes as it takes for a bit a head, the first head's the lowest bit of the first;
            and a byte for each of ``members``: how many of the KV groups that are left it computes, in their order. All
            0, or no members: those compute heads who have them.
    """

    session: _Session
    layer: Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
    bits: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_KEPT_BYTES)]
    members: Annotated[int, msgspec.Meta(ge=0, lt=MAX_KEPT_BYTES)] = 0


class MeansHead(_GroupHead, frozen=True, tag=13):
    """What heads give on average follows, of all layers and heads, ``[layers, heads, head_dim]`` in float32: of heads
    that a session leaves out it is added to each row from now on."""


class TruncateHead(_GroupHead, frozen=True, tag=3):
    """Positions from ``position`` on are forgotten."""

    session: _Session
    position: _Position


class ForkHead(_GroupHead, frozen=True, tag=4):
    """Session ``session`` begins as a copy of the first ``position`` rows of ``source``, and reaches ``positions``."""

    session: _Session
    source: _Session
    position: _Position
    positions: _Position


class CloseHead(_GroupHead, frozen=True, tag=5):
    """A session ends."""

    session: _Session


class HandHead(_GroupHead, frozen=True, tag=14):
    """A written ``JoinedPlan`` of so many bytes follows. At a life's end it is the ``next`` one's: who is in that gets
    the keys and values that it is to have there, where nobody in it is new; else all keep what they have. At a life's
    beginning it is the one before, by which they lie."""

    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_PLAN_BYTES)]
    next: bool


class ResumeHead(_GroupHead, frozen=True, tag=15):
    """A session of the life before goes on, of ``positions`` at most, from ``position``, behind which all is forgotten:
    members have its keys and values, or give them now to who has come."""

    session: _Session
    positions: _Position
    position: _Position


class MannerHead(_GroupHead, frozen=True, tag=20):
    """From now on layers are run in this manner, and only so many of them, evenly taken; 0: all. There are
    no sessions then."""

    manner: Manner
    layers: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0


class IdleHead(_GroupHead, frozen=True, tag=6):
    """Nothing for now: who hears this knows that the portal lives."""


class EndHead(_GroupHead, frozen=True, tag=7):
    """The portal stops: this member may leave."""


StepHead = Union[RowsHead, BatchHead, ReadHead]
"""Heads that rows follow which go through the layers."""

GroupHead = Union[
    OpenHead,
    SourceHead,
    KeepHead,
    MeansHead,
    HandHead,
    ResumeHead,
    RowsHead,
    BatchHead,
    ReadHead,
    TruncateHead,
    ForkHead,
    CloseHead,
    MannerHead,
    IdleHead,
    EndHead,
]

_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(GroupHead)
_LENGTH: Final = 2
"""Bytes that say how long a head is."""


def written(head: GroupHead) -> torch.Tensor:
    """A head as uint8 ``[HEAD_BYTES]``: its length, itself, and zeros."""
    data = _encode(head)
    assert len(data) <= HEAD_BYTES - _LENGTH
    whole = len(data).to_bytes(_LENGTH, "big") + data
    return torch.frombuffer(bytearray(whole.ljust(HEAD_BYTES, b"\0")), dtype=torch.uint8)


def read(tensor: torch.Tensor) -> GroupHead:
    """The head in such a tensor. Raises ``BadGroupHead``."""
    data = tensor.numpy().tobytes()
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    if len(data) != HEAD_BYTES or end > HEAD_BYTES or any(data[end:]):
        raise BadGroupHead("what came is no head")
    try:
        head: GroupHead = _decoder.decode(data[_LENGTH:end])
    except msgspec.MsgspecError as error:
        raise BadGroupHead(str(error)) from None
    for part in head.parts if isinstance(head, BatchHead) else [head]:
        if isinstance(part, RowsHead) and part.want > part.rows:
            raise BadGroupHead(f"{part.want} of {part.rows} rows cannot be wanted")
    if isinstance(head, (BatchHead, ReadHead)) and head.rows > MAX_ROWS:
        raise BadGroupHead(f"{head.rows} rows are too many for one step")
    if isinstance(head, BatchHead) and len({part.session for part in head.parts}) < len(head.parts):
        raise BadGroupHead("two parts of a step are of one session")
    return head
