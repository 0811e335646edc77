"""Where buffers lie: never over one another, and there is always room where it is promised."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from split_model.offload.ring import Ring

LENGTHS = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=3), max_size=60)


@given(st.integers(40, 200), LENGTHS)
def test_buffers_never_overlap_and_lie_within(size: int, asked: list[list[int]]) -> None:
    """Whatever is taken and freed, the bytes of what is not freed are different ones, and all in the ring."""
    ring = Ring(size)
    live: deque[list[range]] = deque()
    for lengths in asked:
        while (starts := ring.take(lengths)) is None and live:
            ring.free()
            live.popleft()
        if starts is None:
            assert sum(lengths) > size, "an empty ring has room for all that is not larger"
            continue
        live.append([range(start, start + length) for start, length in zip(starts, lengths, strict=True)])
        taken = [byte for buffers in live for buffer in buffers for byte in buffer]
        assert len(taken) == len(set(taken))
        assert all(0 <= byte < size for byte in taken)


@given(LENGTHS, st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_there_is_room_for_what_fits_with_its_largest_once_more(before: list[list[int]], wanted: list[int]) -> None:
    """Wherever the ring stands, and with nothing freed between: that is what `holding` asks of it."""
    ring = Ring(max(sum(wanted) + max(wanted), 120))
    taken = 0
    for lengths in before:
        while ring.take(lengths) is None:
            ring.free()
            taken -= 1
        taken += 1
    held = []
    for length in wanted:
        # What is before them is freed in time, they are not.
        while (found := ring.take([length])) is None and taken:
            ring.free()
            taken -= 1
        held.append(found)
    assert None not in held


def test_freed_room_is_used_again_in_order() -> None:
    """Two buffers, the third at the beginning as soon as the first is free."""
    ring = Ring(10)
    assert ring.take([4]) == [0]
    assert ring.take([4]) == [4]
    assert ring.take([4]) is None
    ring.free()
    assert ring.take([4]) == [0]
    assert ring.take([7]) is None
