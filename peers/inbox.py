"""What one member sends and where in memory it belongs; and what it may not send. Pure, and not safe on threads.

A frame is *expected* where its place is known, and is read right into it. It is *early* where the sender is ahead of
this member, in a collective that has not begun here or under a tag that was not asked for yet: a short one is kept, for
a long one its link waits. Where what is behind it may be waited for first, more is kept while anything is expected.
Everything else is a lie, or a mistake, and ends whoever sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from peers.frames import NUMBERS, Kind, PeerFrame
from wire.errors import Code, ConnectionFailed

EARLY_BYTES: Final = 256 * 1024
"""What is kept of early frames of one member: rows of some decode steps. Copying more would cost more than waiting."""

MOST_EARLY: Final = 1024
"""Frames that are kept of one member."""

AHEAD: Final = 1024
"""Collectives that a member may be ahead of another. Where each needs all of the last it is one or two."""

MOST_TAGS: Final = 64
"""Tags are below it."""

Key = tuple[Kind, int, int]
"""Kind, tag and part."""


class Expected(NamedTuple):
    """Where a frame's payload belongs, ``view`` being of bytes, and what is called once it is all there."""

    view: memoryview
    arrived: Callable[[], None]


@dataclass
class Inbox:
    """Of one member, in one epoch.

    Attributes:
        epoch: which it is; frames of another are dropped.
        dropped: how many have been.
        ahead_bytes: of early frames, that are kept besides while anything is expected.
    """

    epoch: int
    dropped: int = 0
    ahead_bytes: int = 0
    _expected: dict[Key, Expected] = field(default_factory=dict)
    _early: dict[Key, bytes | bytearray] = field(default_factory=dict)
    _early_bytes: int = 0
    _begun: int = 0
    _asked: dict[int, int] = field(default_factory=dict)
    _came: dict[int, int] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """Whether anything is expected."""
        return bool(self._expected)

    def begin(self, number: int, expected: Mapping[Key, Expected]) -> list[Expected]:
        """A collective has begun here. Returns what of it is there already, and filled.

        Raises ``ConnectionFailed`` where something came that does not belong to it.
        """
        following = (number + 1) % NUMBERS
        if (following - self._begun) % NUMBERS < NUMBERS // 2:  # Else a later one has begun before, on another thread.
            self._begun = following
        here = [each for key, each in expected.items() if self._expect(key, each)]
        if self._early and any(kind is not Kind.SEND and tag == number for kind, tag, _ in self._early):
            raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, f"a tile that collective {number} does not have from it")
        return here

    def ask(self, tag: int, expected: Expected) -> bool:
        """Expect the next frame under a tag; True where it is there already, and filled. Raises ``ConnectionFailed``
        where that has another length."""
        part = self._asked.get(tag, 0)
        self._asked[tag] = (part + 1) % NUMBERS
        return self._expect((Kind.SEND, tag, part), expected)

    def find(self, frame: PeerFrame) -> Expected | None:
        """Where the payload of a frame of this epoch belongs; it counts as come. None: the frame is early.

        Raises ``ConnectionFailed`` for a frame that cannot be.
        """
        key = frame.kind, frame.tag, frame.part
        expected = self._expected.get(key)
        if expected is None:
            self._check_early(frame)
            return None
        _check_length(frame, expected)
        del self._expected[key]
        self._count(frame)
        return expected

    def has_room(self, frame: PeerFrame) -> bool:
        """Whether an early frame is kept."""
        most = EARLY_BYTES + (self.ahead_bytes if self._expected else 0)
        return self._early_bytes + frame.length <= most and len(self._early) < MOST_EARLY

    def keep(self, frame: PeerFrame, data: bytes | bytearray) -> Expected | None:
        """Keep an early frame; or return where it belongs, filled, if that has become known meanwhile.

        Raises ``ConnectionFailed`` as ``find`` does.
        """
        expected = self.find(frame)
        if expected is not None:
            expected.view[:] = data
            return expected
        self._early[frame.kind, frame.tag, frame.part] = data
        self._early_bytes += len(data)
        self._count(frame)
        return None

    def _expect(self, key: Key, expected: Expected) -> bool:
        data = self._early.pop(key, None)
        if data is None:
            self._expected[key] = expected
            return False
        self._early_bytes -= len(data)
        _check_length(PeerFrame(key[0], self.epoch, key[1], key[2], len(data)), expected)
        expected.view[:] = data
        return True

    def _check_early(self, frame: PeerFrame) -> None:
        if frame.kind is Kind.SEND:
            possible = frame.tag < MOST_TAGS and frame.part == self._came.get(frame.tag, 0)
        else:
            possible = (frame.tag - self._begun) % NUMBERS < AHEAD
        if not possible or (frame.kind, frame.tag, frame.part) in self._early:
            what = f"{frame.kind.name} {frame.tag}.{frame.part}"
            raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, f"a frame that nobody asked for ({what})")

    def _count(self, frame: PeerFrame) -> None:
        if frame.kind is Kind.SEND:
            self._came[frame.tag] = (frame.part + 1) % NUMBERS


def check_tag(tag: int) -> None:
    """Raises ``ValueError`` for a tag that there is not."""
    if not 0 <= tag < MOST_TAGS:
        raise ValueError(f"a tag is from 0 to {MOST_TAGS - 1}, not {tag}")


def _check_length(frame: PeerFrame, expected: Expected) -> None:
    if len(expected.view) != frame.length:
        what = f"{frame.kind.name} {frame.tag}.{frame.part}"
        raise ConnectionFailed(
            Code.SHAPE_MISMATCH, f"{frame.length} bytes where {len(expected.view)} were to come ({what})"
        )
