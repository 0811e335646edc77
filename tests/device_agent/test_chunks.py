"""However advice comes, a prefill is cut completely, and no chunk is too long."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from device_agent.cloud.chunks import GROWTH, Chunker, chunk_sizes
from wire.limits import FIRST_CHUNK, LEAST_CHUNK


def rest(chunker: Chunker) -> list[int]:
    """All chunks still to come."""
    return list(iter(chunker.next, 0))


@given(st.integers(0, 3000), st.integers(1, 600), st.integers(1, 600))
def test_without_advice(rows: int, default: int, limit: int) -> None:
    """Even chunks of the default, or of the limit where that is smaller; then 0, however often it is asked."""
    chunker = Chunker(rows, default, limit)
    assert rest(chunker) == chunk_sizes(rows, min(default, limit))
    assert chunker.next() == 0


def test_before_any_advice() -> None:
    """What follows the cloud begins small: its advice for this prompt comes while the first chunk is on its way."""
    chunker = Chunker(1000, 512, 512, FIRST_CHUNK)
    assert chunker.next() == FIRST_CHUNK
    chunker.advise(0, [100, 200, 700])
    assert rest(chunker) == [36, 200, 350, 350]
    assert rest(Chunker(1000, 512, 512, FIRST_CHUNK)) == [64, 192, 372, 372]
    assert rest(Chunker(500, 128, 512, FIRST_CHUNK)) == [64, 109, 109, 109, 109]


def test_advice_before_the_first_chunk() -> None:
    """A schedule that begins small is followed to the row."""
    chunker = Chunker(351, 128, 512, FIRST_CHUNK)
    chunker.advise(0, [40, 75, 212, 24])
    assert rest(chunker) == [40, 75, 212, 24]


def test_a_schedule_that_begins_large() -> None:
    """Its first chunks are cut shorter, until what is on its way is a third of the next; the boundaries stay."""
    chunker = Chunker(1000, 128, 512, FIRST_CHUNK)
    chunker.advise(0, [500, 450, 50])
    assert rest(chunker) == [64, 192, 244, 450, 50]


def test_hardly_more_than_a_first_chunk() -> None:
    """A chunk that only a few rows make too long stays whole."""
    most = FIRST_CHUNK + LEAST_CHUNK - 1
    for rows, expected in ((most, [most]), (most + 1, [FIRST_CHUNK, LEAST_CHUNK])):
        chunker = Chunker(rows, 128, 512, FIRST_CHUNK)
        chunker.advise(0, [rows])
        assert rest(chunker) == expected


def test_late_advice() -> None:
    """What is cut stays; of the schedule the boundaries ahead are kept."""
    chunker = Chunker(351, 100, 512)
    assert chunker.next() == 88
    chunker.advise(0, [40, 200, 87, 24])
    assert rest(chunker) == [152, 87, 24]


def test_late_advice_leaves_no_crumbs() -> None:
    """A piece before a boundary just ahead is joined to the chunk behind it, unless the schedule ends there."""
    chunker = Chunker(351, 100, 512)
    assert chunker.next() == 88
    chunker.advise(0, [100, 100, 151])
    assert rest(chunker) == [112, 151]
    chunker = Chunker(351, 180, 512)
    assert chunker.next() == 176
    chunker.advise(0, [180])
    assert rest(chunker) == [4, 171]


def test_advice_for_rows_ahead() -> None:
    """Rows before its begin are cut by the default."""
    chunker = Chunker(1000, 100, 512)
    assert chunker.next() == 100
    chunker.advise(300, [300, 400])
    assert rest(chunker) == [100, 100, 300, 400]


def test_the_latest_advice_counts() -> None:
    """A second schedule replaces the first."""
    chunker = Chunker(600, 100, 512, FIRST_CHUNK)
    chunker.advise(0, [300, 300])
    chunker.advise(0, [60, 540])
    assert chunker.next() == 60
    chunker.advise(60, [120, 360, 60])
    assert rest(chunker) == [120, 360, 60]


def test_advice_that_says_nothing_about_what_is_ahead() -> None:
    """Empty, all zero, passed already, or beyond the end: the advice before it stays."""
    chunker = Chunker(600, 100, 512)
    chunker.advise(0, [60, 120, 300, 120])
    assert [chunker.next(), chunker.next()] == [60, 120]
    for begin, sizes in ((0, []), (400, [0, -5]), (0, [100, 80]), (600, [10]), (9000, [10])):
        chunker.advise(begin, sizes)
    assert rest(chunker) == [300, 120]
    chunker = Chunker(600, 300, 512)
    chunker.advise(0, [0])
    assert rest(chunker) == [300, 300]


def test_bad_sizes() -> None:
    """Above the limit: cut evenly. Not a size: left out. Too few rows: the default goes on. Too many: cut short."""
    for sizes, expected in (([-3, 500, 0, 100], [250, 250, 100, 114]), ([300, 10**12], [300, 207, 207])):
        chunker = Chunker(1000, 150, 400)
        assert [chunker.next(), chunker.next()] == [143, 143]
        chunker.advise(286, sizes)
        assert rest(chunker) == expected


@given(
    st.integers(0, 2000),
    st.integers(1, 600),
    st.integers(1, 600),
    st.integers(1, 600),
    st.lists(st.none() | st.tuples(st.integers(-50, 2500), st.lists(st.integers(-50, 900), max_size=8)), max_size=20),
)
def test_any_advice_at_any_time(
    rows: int, default: int, limit: int, first: int, events: list[tuple[int, list[int]] | None]
) -> None:
    """Chunks add up to the rows, each is within 1 and the limit, and none is much longer than the link gives time
    for."""
    chunker = Chunker(rows, default, limit, first)
    sizes: list[int] = []
    for advice in [*events, *[None] * rows]:
        cut = sum(sizes)
        if advice is not None:
            begin, wanted = advice
            chunker.advise(begin, wanted)
        elif size := chunker.next():
            assert size <= limit
            assert size < max(first, GROWTH * cut) + LEAST_CHUNK
            sizes.append(size)
        else:
            break
    assert all(size > 0 for size in sizes) and sum(sizes) == rows


@given(st.data())
def test_advice_that_fits_is_followed(data: st.DataObject) -> None:
    """However many chunks were cut before a schedule came, what follows ends at all of its boundaries ahead, but for
    one less than ``LEAST_CHUNK`` ahead; other ends are those of first chunks cut shorter. No piece is under
    ``LEAST_CHUNK`` but the last of the prompt."""
    sizes = data.draw(st.lists(st.integers(LEAST_CHUNK, 200), min_size=1, max_size=12))
    rows, limit = sum(sizes), 200 + LEAST_CHUNK
    chunker = Chunker(rows, data.draw(st.integers(2 * LEAST_CHUNK, 100)), limit, FIRST_CHUNK)
    end = begin = sum(chunker.next() for _ in range(data.draw(st.integers(0, 5))))
    chunker.advise(0, sizes)
    boundaries = set(accumulate(sizes))
    chunks = rest(chunker)
    ends = [begin + done for done in accumulate(chunks)]
    assert {at for at in boundaries if at >= begin + LEAST_CHUNK or at == rows > begin} <= set(ends)
    for size, after in zip(chunks, ends, strict=True):
        assert after in boundaries or size == max(FIRST_CHUNK, GROWTH * end)
        assert size >= LEAST_CHUNK or after == rows
        end = after
