"""What leaves next: order within a subject, turns between parties, and what is taken back. And the way back: parts of
any frames, mixed in any way, become those frames; whatever lies about itself is refused before memory is taken."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import Code, ConnectionFailed
from wire.frames import PREFIX, read_prefix
from wire.limits import (
    CLOUD_LINK,
    MAX_HALF_BYTES,
    MAX_HALF_FRAMES,
    MESSAGE_BYTES,
    PART_BYTES,
    SHORT_FRAME_BYTES,
    LinkLimits,
)
from wire.outbox import Outbox, Outgoing
from wire.parts import CUT_OFF, FIRST, FURTHER, Assembly, cut_off, first_part, further_part

LONG = 3 * PART_BYTES + 100
LIMITS = LinkLimits()


def frame(size: int, fill: int = 0) -> bytearray:
    """A frame of so many bytes that begins as one does."""
    return bytearray(PREFIX.pack(b"TL", 5, 0, 0, 0)) + bytearray([fill % 256]) * (size - PREFIX.size)


def put(outbox: Outbox, size: int, subject: int | None, party: str | None = None) -> Outgoing:
    """A frame of so many bytes, with its subject in its bytes."""
    entry = Outgoing(frame(size, subject or 0), subject, party)
    outbox.put(entry)
    return entry


def order(outbox: Outbox) -> list[Outgoing]:
    """The frames in the order in which the last of each leaves."""
    done = []
    while (taken := outbox.take()) is not None:
        if taken[1] is not None:
            done.append(taken[1])
    return done


def test_a_word_passes_between_the_parts_of_a_long_frame() -> None:
    """It waits for one of them at most, however many long ones are there."""
    outbox = Outbox()
    for party in range(20):
        put(outbox, LONG, party)
    taken = outbox.take()
    assert taken is not None and len(taken[0]) == MESSAGE_BYTES
    word = put(outbox, 50, None)
    assert outbox.take() == (frame(50), word)


def test_words_do_not_hold_long_frames_for_ever() -> None:
    """For as many bytes of short frames a long one has a part."""
    outbox = Outbox()
    put(outbox, LONG, 1)
    shorts = longs = 0
    for _ in range(400):
        put(outbox, 1000, None)
        taken = outbox.take()
        assert taken is not None
        if taken[1] is None or not taken[1].is_short:
            longs += len(taken[0])
        else:
            shorts += len(taken[0])
    assert longs > LONG and 0.5 < shorts / (400 * 1000) < 1


def test_a_short_message_of_one_is_not_held_by_a_long_one_of_another() -> None:
    """8 MiB of one party and 300 kB of another: they take turns, and the smaller is through after twice its bytes."""
    outbox = Outbox()
    large = put(outbox, 8 * 2**20, 1, "a")
    for number in range(2, 6):
        put(outbox, 8 * 2**20, number, "a")
    small = put(outbox, 300_000, 9, "b")
    through = 0
    while not (taken := outbox.take() or (b"", None))[1]:
        through += len(taken[0])
    assert taken[1] is small and through < 2.5 * 300_000
    done = order(outbox)
    assert done[0] is large and [each.subject for each in done] == [1, 2, 3, 4, 5]


def test_the_longest_of_a_party_does_not_hold_up_the_others_of_it() -> None:
    """Two of them take turns, so that a shorter one is through after about twice its bytes; and a crowd of one party
    leaves room for others to begin."""
    outbox = Outbox()
    put(outbox, 8 * 2**20, 1, "a")
    small = put(outbox, 300_000, 2, "a")
    through = 0
    while not (taken := outbox.take() or (b"", None))[1]:
        through += len(taken[0])
    assert taken[1] is small and through < 2.5 * 300_000
    outbox = Outbox()
    for number in range(100):
        put(outbox, LONG, number, str(number % 2))
    for _ in range(10):
        outbox.take()
    newcomer = put(outbox, LONG, 100, "new")
    assert order(outbox).index(newcomer) < 12


def test_what_follows_a_long_frame_of_its_subject_waits_for_it() -> None:
    """A truncation after a forward, a forward after that; another's goes first."""
    outbox = Outbox()
    expected = [put(outbox, size, 1) for size in (40, LONG, 30, 20, LONG, 10)]
    other = put(outbox, 5, 2)
    done = order(outbox)
    assert [each for each in done if each is not other] == expected
    assert done.index(other) == 1


def test_a_long_frame_does_not_overtake_the_short_ones_before_it() -> None:
    """Also where short ones have had more than their share: a session is open before its rows come."""
    outbox = Outbox()
    for _ in range(3):
        put(outbox, SHORT_FRAME_BYTES, None)
    opened, rows = put(outbox, 40, 1), put(outbox, LONG, 1)
    done = order(outbox)
    assert done.index(opened) < done.index(rows)


def test_bytes_of_who_is_gone_leave_the_queue() -> None:
    """What has not begun disappears with all that was put behind it; of what has begun the rest does not come, which
    the peer is told in its turn; what has left is no concern."""
    outbox = Outbox()
    for number in range(30):
        put(outbox, 4 * 2**20, number, "greedy")
        put(outbox, 10, number)
    first = outbox.take()
    assert first is not None
    for number in range(30):
        assert outbox.withdraw(number)
        assert not outbox.withdraw(number)
    assert outbox.long_bytes == outbox.short_bytes == outbox._party_bytes.get("greedy", 0) == 0 and outbox
    message, entry = outbox.take() or (bytearray(), None)
    assert entry is None and read_prefix(message)[:2] == (CUT_OFF, read_prefix(first[0])[1])
    assert not outbox and outbox.take() is None
    assert not put(outbox, 40, 5).has_left and not outbox.withdraw(5), "a short one leaves at once"


sizes = st.sampled_from([20, 500, SHORT_FRAME_BYTES, SHORT_FRAME_BYTES + 1, PART_BYTES, PART_BYTES + 1, LONG, 2**20])
actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), sizes, st.integers(0, 5) | st.none(), st.sampled_from([None, "a", "b"])),
        st.tuples(st.just("take"), st.integers(1, 12), st.none(), st.none()),
        st.tuples(st.just("withdraw"), st.integers(0, 5), st.none(), st.none()),
    ),
    max_size=60,
)


@given(actions)
def test_whatever_is_put_arrives_whole_in_order_or_is_taken_back(
    steps: list[tuple[str, int, int | None, str | None]],
) -> None:
    """Any frames, parties, takings and takings back: the other side is never asked for more than it holds, gets the
    frames of each subject in order and unchanged, and nothing waits in the end."""
    outbox, assembly = Outbox(), Assembly(LIMITS)
    sent: dict[int | None, list[bytes]] = defaultdict(list)
    arrived: dict[int | None, list[bytes]] = defaultdict(list)
    owners: dict[bytes, int | None] = {}
    count = 0

    def leave(taken: tuple[bytearray, Outgoing | None]) -> None:
        data = bytes(taken[0])
        assert len(data) <= MESSAGE_BYTES
        kind, value, _ = read_prefix(data)
        whole = assembly.take(kind, value, data, 0.0) if kind >= FIRST else data
        if whole is not None:
            arrived[owners[whole]].append(whole)

    for kind, value, subject, party in steps:
        if kind == "put":
            count += 1
            data = frame(value)
            data[12:16] = count.to_bytes(4, "little")
            owners[bytes(data)] = subject
            sent[subject].append(bytes(data))
            outbox.put(Outgoing(data, subject, party if subject is not None else None))
        elif kind == "take":
            for _ in range(value):
                taken = outbox.take()
                if taken is not None:
                    leave(taken)
        else:
            outbox.withdraw(value)
        assert len(assembly) <= MAX_HALF_FRAMES
        waiting = sum(outbox._party_bytes.values())
        assert waiting == outbox.long_bytes >= 0 and outbox.short_bytes >= 0
    while (taken := outbox.take()) is not None:
        leave(taken)
    assert not outbox and outbox.short_bytes == outbox.long_bytes == 0 and not len(assembly) and not assembly.held_bytes
    withdrawn = {value for kind, value, *_ in steps if kind == "withdraw"}
    for subject, frames in sent.items():
        if subject is None:
            assert sorted(arrived[subject]) == sorted(frames)  # Nothing is said about their order.
        elif subject in withdrawn:
            rest = iter(frames)
            assert all(each in rest for each in arrived[subject])
        else:
            assert arrived[subject] == frames


@given(st.lists(st.integers(PART_BYTES + 1, 4 * PART_BYTES), min_size=1, max_size=MAX_HALF_FRAMES), st.integers())
def test_parts_in_any_mixture_become_their_frames(lengths: list[int], seed: int) -> None:
    """Whichever comes next, as long as those of one frame are in order."""
    rng, assembly = random.Random(seed), Assembly(LIMITS)
    frames = [rng.randbytes(length) for length in lengths]
    begun = [0] * len(frames)
    whole: dict[int, bytes] = {}
    while len(whole) < len(frames):
        number = rng.choice([each for each in range(len(frames)) if each not in whole])
        view, at = memoryview(frames[number]), begun[number]
        part = further_part(number, view, at) if at else first_part(number, view)
        begun[number] += PART_BYTES
        got = assembly.take(FURTHER if at else FIRST, number, bytes(part), 0.0)
        if got is not None:
            whole[number] = got
    assert [whole[number] for number in range(len(frames))] == frames and not len(assembly)


def refused(assembly: Assembly, kind: int, number: int, data: bytearray, code: Code) -> None:
    """It is, and no byte more is held."""
    held = assembly.held_bytes
    with pytest.raises(ConnectionFailed) as failed:
        assembly.take(kind, number, bytes(data), 0.0)
    assert failed.value.code is code and assembly.held_bytes <= held


@given(st.integers(0, 2**32 - 1), st.integers(0, PART_BYTES + 4))
def test_what_lies_about_its_length_is_refused(total: int, size: int) -> None:
    """A first part must be full, of a frame that is long and within the limit; nothing is held of one that is not."""
    part = first_part(1, memoryview(bytes(LONG)))[: PREFIX.size + 4 + size]
    part[PREFIX.size : PREFIX.size + 4] = total.to_bytes(4, "little")
    assembly = Assembly(LIMITS)
    honest = PART_BYTES < total <= LIMITS.frame_bytes and len(part) == PREFIX.size + 4 + PART_BYTES
    if honest:
        assert assembly.take(FIRST, 1, bytes(part), 0.0) is None and assembly.held_bytes == PART_BYTES
    else:
        code = Code.TOO_LARGE if total > LIMITS.frame_bytes else Code.BAD_FRAME
        refused(assembly, FIRST, 1, part, code)
        assert not assembly.held_bytes


def test_parts_that_belong_to_nothing_are_refused() -> None:
    """Of a frame that never began, that was cut off, that is complete or begins again; a part that is too short or has
    more behind it; and a first part without its length."""
    data = memoryview(bytes(2 * PART_BYTES))
    first, last = first_part(7, data), further_part(7, data, PART_BYTES)
    refused(Assembly(LIMITS), FURTHER, 7, last, Code.BAD_FRAME)
    refused(Assembly(LIMITS), CUT_OFF, 7, cut_off(7), Code.BAD_FRAME)
    refused(Assembly(LIMITS), FIRST, 7, first[:14], Code.BAD_FRAME)
    for end in (last, cut_off(7)):
        assembly = Assembly(LIMITS)
        assembly.take(FIRST, 7, bytes(first), 0.0)
        assembly.take(read_prefix(end)[0], 7, bytes(end), 0.0)
        refused(assembly, FURTHER, 7, last, Code.BAD_FRAME)
        assert not assembly.held_bytes
    for kind, wrong in ((FURTHER, last[:-1]), (FURTHER, last + b"x"), (FIRST, first), (CUT_OFF, cut_off(7) + b"x")):
        assembly = Assembly(LIMITS)
        assembly.take(FIRST, 7, bytes(first), 0.0)
        refused(assembly, kind, 7, wrong, Code.BAD_FRAME)


def test_too_much_at_once_is_refused_before_it_comes() -> None:
    """Too many frames in part, or too many bytes announced with them; one that ends makes room."""
    assembly = Assembly(LIMITS)
    data = memoryview(bytes(LONG))
    for number in range(MAX_HALF_FRAMES):
        assembly.take(FIRST, number, bytes(first_part(number, data)), 0.0)
    refused(assembly, FIRST, 99, first_part(99, data), Code.TOO_LARGE)
    assembly.take(CUT_OFF, 3, bytes(cut_off(3)), 0.0)
    assembly.take(FIRST, 99, bytes(first_part(99, data)), 0.0)
    assembly, data = Assembly(LIMITS), memoryview(bytes(CLOUD_LINK.frame_bytes))
    for number in range(MAX_HALF_BYTES // CLOUD_LINK.frame_bytes):
        assembly.take(FIRST, number, bytes(first_part(number, data)), 0.0)
    refused(assembly, FIRST, 99, first_part(99, data), Code.TOO_LARGE)
    assert assembly.held_bytes == MAX_HALF_BYTES // CLOUD_LINK.frame_bytes * PART_BYTES
