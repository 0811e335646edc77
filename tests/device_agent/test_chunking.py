"""However advice comes, a prefill is cut completely, and no chunk is too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from device_agent.chunking import Chunker, chunk_sizes


def rest(chunker: Chunker) -> list[int]:
    """All chunks still to come."""
    return list(iter(chunker.next, 0))


@given(st.integers(0, 3000), st.integers(1, 600), st.integers(1, 600))
def test_without_advice(rows: int, default: int, limit: int) -> None:
    """Even chunks of the default, or of the limit where that is smaller; then 0, however often it is asked."""
    chunker = Chunker(rows, default, limit)
    assert rest(chunker) == chunk_sizes(rows, min(default, limit))
    assert chunker.next() == 0


def test_advice_before_the_first_chunk() -> None:
    """A schedule is followed to the row."""
    chunker = Chunker(351, 128, 512)
    chunker.advise(0, [40, 240, 47, 24])
    assert rest(chunker) == [40, 240, 47, 24]


def test_late_advice() -> None:
    """What is cut stays; of the schedule the boundaries ahead are kept."""
    chunker = Chunker(351, 100, 512)
    assert chunker.next() == 88
    chunker.advise(0, [40, 240, 47, 24])
    assert rest(chunker) == [192, 47, 24]


def test_advice_for_rows_ahead() -> None:
    """Rows before its begin are cut by the default."""
    chunker = Chunker(1000, 100, 512)
    assert chunker.next() == 100
    chunker.advise(300, [300, 400])
    assert rest(chunker) == [100, 100, 300, 400]


def test_the_latest_advice_counts() -> None:
    """A second schedule replaces the first."""
    chunker = Chunker(600, 100, 512)
    chunker.advise(0, [300, 300])
    chunker.advise(0, [100, 500])
    assert chunker.next() == 100
    chunker.advise(100, [200, 300])
    assert rest(chunker) == [200, 300]


def test_advice_that_says_nothing_about_what_is_ahead() -> None:
    """Empty, all zero, passed already, or beyond the end: the advice before it stays."""
    chunker = Chunker(600, 100, 512)
    chunker.advise(0, [300, 300])
    assert chunker.next() == 300
    for begin, sizes in ((0, []), (400, [0, -5]), (0, [100, 200]), (600, [10]), (9000, [10])):
        chunker.advise(begin, sizes)
    assert rest(chunker) == [300]


def test_bad_sizes() -> None:
    """Above the limit: cut evenly. Not a size: left out. Too few rows: the default goes on. Too many: cut short."""
    chunker = Chunker(1000, 150, 400)
    chunker.advise(0, [-3, 500, 0, 200])
    assert rest(chunker) == [250, 250, 200, 150, 150]
    chunker = Chunker(1000, 150, 400)
    chunker.advise(0, [300, 300, 10**12])
    assert rest(chunker) == [300, 300, 400]


@given(
    st.integers(0, 2000),
    st.integers(1, 600),
    st.integers(1, 600),
    st.lists(st.none() | st.tuples(st.integers(-50, 2500), st.lists(st.integers(-50, 900), max_size=8)), max_size=20),
)
def test_any_advice_at_any_time(
    rows: int, default: int, limit: int, events: list[tuple[int, list[int]] | None]
) -> None:
    """Chunks add up to the rows and each is within 1 and the limit, whatever is advised between them."""
    chunker, sizes = Chunker(rows, default, limit), []
    for advice in events:
        if advice is None:
            sizes.append(chunker.next())
        else:
            chunker.advise(*advice)
    sizes = [size for size in sizes if size] + rest(chunker)
    assert sum(sizes) == rows
    assert all(1 <= size <= limit for size in sizes)


@given(st.data())
def test_advice_that_fits_is_followed(data: st.DataObject) -> None:
    """However many chunks were cut before a schedule came, what follows ends at all of its boundaries ahead."""
    sizes = data.draw(st.lists(st.integers(1, 100), min_size=1, max_size=12))
    chunker = Chunker(sum(sizes), data.draw(st.integers(1, 100)), 100)
    cut = sum(chunker.next() for _ in range(data.draw(st.integers(0, 5))))
    chunker.advise(0, sizes)
    expected = [end for end in (sum(sizes[: count + 1]) for count in range(len(sizes))) if end > cut]
    chunks = rest(chunker)
    ends = [cut + sum(chunks[: count + 1]) for count in range(len(chunks))]
    assert ends == expected
