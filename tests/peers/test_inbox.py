"""What a member may send, and when: it fills the right memory in any order, and lies in no field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.frames import NUMBERS, Kind, PeerFrame
from peers.inbox import AHEAD, EARLY_BYTES, MOST_EARLY, MOST_TAGS, Expected, Inbox, Key, check_tag
from wire.errors import ConnectionFailed

EPOCH = 7


class Room:
    """Memory that something is to come into, and how often it has."""

    def __init__(self, length: int) -> None:
        self.memory = bytearray(length)
        self.times = 0

    def expected(self) -> Expected:
        """As an inbox wants it."""
        return Expected(memoryview(self.memory), self.arrived)

    def arrived(self) -> None:
        """Called by whoever fills it."""
        self.times += 1


def come(inbox: Inbox, frame: PeerFrame, data: bytes) -> None:
    """What a link does with a frame."""
    expected = inbox.find(frame)
    if expected is None:
        assert inbox.has_room(frame)
        expected = inbox.keep(frame, data)
    else:
        expected.view[:] = data
    if expected is not None:
        expected.arrived()


@given(st.data())
def test_frames_come_before_or_after_they_are_asked_for(data: st.DataObject) -> None:
    """Of several collectives and tags, in any order of both: each fills its own memory, once."""
    inbox = Inbox(EPOCH)
    collectives = data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    tagged = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=5))
    rooms: dict[Key, Room] = {}
    steps: list[tuple[str, object]] = [("begin", number) for number in range(collectives)]
    arrivals: list[PeerFrame] = [
        PeerFrame(Kind.GATHER, EPOCH, number, part, length)
        for number in range(collectives)
        for part, length in enumerate(lengths)
    ]
    asked: dict[int, int] = {}
    for tag, length in tagged:
        part = asked[tag] = asked.get(tag, -1) + 1
        arrivals.append(PeerFrame(Kind.SEND, EPOCH, tag, part, length))
        rooms[Kind.SEND, tag, part] = Room(length)
    queue = [*steps, *(("ask", each) for each in tagged), *(("come", each) for each in arrivals)]
    order = data.draw(st.permutations(queue))
    # Collectives begin in order, and what is sent under one tag comes in order, as a socket delivers it.
    begins = iter(range(collectives))
    sends = {tag: iter([each for each in arrivals if (each.kind, each.tag) == (Kind.SEND, tag)]) for tag in range(3)}
    counts: dict[int, int] = {}
    for what, value in order:
        if what == "begin":
            number = next(begins)
            expected = {}
            for part, length in enumerate(lengths):
                room = rooms[Kind.GATHER, number, part] = Room(length)
                expected[Kind.GATHER, number, part] = room.expected()
            for each in inbox.begin(number, expected):
                each.arrived()
        elif what == "ask":
            tag = value[0]  # type: ignore[index]
            part = counts[tag] = counts.get(tag, -1) + 1
            room = rooms[Kind.SEND, tag, part]
            if inbox.ask(tag, room.expected()):
                room.arrived()
        else:
            assert isinstance(value, PeerFrame)
            frame = value if value.kind is not Kind.SEND else next(sends[value.tag])
            come(inbox, frame, content(frame))
    assert not inbox.waiting
    for (kind, tag, part), room in rooms.items():
        assert room.times == 1
        assert bytes(room.memory) == content(PeerFrame(kind, EPOCH, tag, part, len(room.memory)))


def content(frame: PeerFrame) -> bytes:
    """Bytes that only this frame has."""
    return bytes((frame.kind * 31 + frame.tag * 7 + frame.part + at) % 256 for at in range(frame.length))


LIES = {
    "another length": PeerFrame(Kind.GATHER, EPOCH, 3, 0, 9),
    "another tile": PeerFrame(Kind.GATHER, EPOCH, 3, 1, 8),
    "another kind": PeerFrame(Kind.REDUCE, EPOCH, 3, 0, 8),
    "a collective that is over": PeerFrame(Kind.GATHER, EPOCH, 2, 0, 8),
    "a collective far ahead": PeerFrame(Kind.GATHER, EPOCH, 4 + AHEAD, 0, 8),
    "a tag that there is not": PeerFrame(Kind.SEND, EPOCH, MOST_TAGS, 0, 8),
    "not the next of its tag": PeerFrame(Kind.SEND, EPOCH, 1, 1, 8),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_frame_that_lies_is_found_at_once(lie: str) -> None:
    """In whichever field: before any of its payload is read."""
    inbox = Inbox(EPOCH)
    room = Room(8)
    inbox.begin(3, {(Kind.GATHER, 3, 0): room.expected()})
    with pytest.raises(ConnectionFailed):
        inbox.find(LIES[lie])
    assert room.times == 0


def test_what_came_early_has_to_fit_when_it_is_asked_for() -> None:
    """A tile that the collective turns out not to have, another length, or a frame twice: each is a lie."""
    early = PeerFrame(Kind.GATHER, EPOCH, 0, 5, 3)
    for wanted in ({}, {(Kind.GATHER, 0, 4): Room(3).expected()}, {(Kind.GATHER, 0, 5): Room(4).expected()}):
        inbox = Inbox(EPOCH)
        come(inbox, early, b"abc")
        with pytest.raises(ConnectionFailed):
            inbox.find(early)
        with pytest.raises(ConnectionFailed):
            inbox.begin(0, wanted)
    inbox = Inbox(EPOCH)
    come(inbox, PeerFrame(Kind.SEND, EPOCH, 0, 0, 3), b"abc")
    with pytest.raises(ConnectionFailed):
        inbox.ask(0, Room(2).expected())


def test_what_is_kept_is_bounded() -> None:
    """In bytes and in frames; the room is there again once it was asked for."""
    inbox = Inbox(EPOCH)
    come(inbox, PeerFrame(Kind.SEND, EPOCH, 0, 0, EARLY_BYTES), bytes(EARLY_BYTES))
    assert not inbox.has_room(PeerFrame(Kind.SEND, EPOCH, 0, 1, 1))
    assert inbox.ask(0, Room(EARLY_BYTES).expected())
    for part in range(MOST_EARLY):
        come(inbox, PeerFrame(Kind.SEND, EPOCH, 1, part, 0), b"")
    assert not inbox.has_room(PeerFrame(Kind.SEND, EPOCH, 1, MOST_EARLY, 0))


def test_collectives_are_ahead_and_over_across_the_last_number() -> None:
    """The first numbers come behind the last: early there as anywhere, and those before are over."""
    inbox = Inbox(EPOCH)
    inbox._begun = NUMBERS - 1
    early = PeerFrame(Kind.GATHER, EPOCH, 1, 0, 3)
    come(inbox, early, b"abc")
    for number in (NUMBERS - 2, AHEAD - 1):
        with pytest.raises(ConnectionFailed):
            inbox.find(PeerFrame(Kind.GATHER, EPOCH, number, 0, 3))
    room = Room(3)
    for number in (0, NUMBERS - 1):  # On two threads, of which the second is late.
        assert not inbox.begin(number, {})
    assert inbox.begin(1, {(Kind.GATHER, 1, 0): room.expected()}) and room.memory == b"abc"
    with pytest.raises(ConnectionFailed):
        inbox.find(PeerFrame(Kind.GATHER, EPOCH, NUMBERS - 1, 0, 3))


def test_more_is_kept_ahead_of_what_is_expected() -> None:
    """Up to what the link was told, and only as long as anything is expected: else its sender waits, as ever."""
    inbox = Inbox(EPOCH, ahead_bytes=2 * EARLY_BYTES)
    long = PeerFrame(Kind.SEND, EPOCH, 0, 0, 2 * EARLY_BYTES)
    assert not inbox.has_room(long)
    room = Room(8)
    inbox.ask(1, room.expected())
    come(inbox, long, content(long))
    assert not inbox.has_room(PeerFrame(Kind.SEND, EPOCH, 0, 1, 2 * EARLY_BYTES))
    come(inbox, PeerFrame(Kind.SEND, EPOCH, 1, 0, 8), b"expected")
    assert room.memory == b"expected" and not inbox.has_room(PeerFrame(Kind.SEND, EPOCH, 0, 1, 1))
    late = Room(long.length)
    assert inbox.ask(0, late.expected()) and late.memory == content(long)
    assert inbox.has_room(PeerFrame(Kind.SEND, EPOCH, 0, 1, EARLY_BYTES))


@pytest.mark.parametrize("tag", [-1, MOST_TAGS])
def test_tags_are_bounded(tag: int) -> None:
    """A tag out of range is our own caller's mistake."""
    with pytest.raises(ValueError):
        check_tag(tag)
