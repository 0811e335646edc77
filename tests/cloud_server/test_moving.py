"""Which slots a step moves: kept nodes to their positions, a fork's beginning to its own pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_server.cache.moving import copied, kept
from cloud_server.cache.pages import Pages


def slot(pages: Pages[str], key: str, position: int) -> int:
    """Where a position lies."""
    page, offset = divmod(position, pages.page_positions)
    return pages.table(key)[page] * pages.page_positions + offset


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20)), max_size=12),
    st.integers(1, 40),
    st.integers(0, 40),
)
def test_a_fork_is_given_every_position_once(
    size: int, grown: list[tuple[str, int]], positions: int, more: int
) -> None:
    """Whatever runs of pages its source has and it is given, and in no more pieces than those runs make."""
    pages: Pages[str] = Pages(500, size)
    for key in "abc":
        pages.open(key, 1)
    for key, rows in grown:
        pages.extend(key, pages.held(key) * size + rows)
    pages.extend("a", positions + more)
    pages.open("fork", 1)
    pages.extend("fork", positions)
    moves = copied(pages.runs("a"), pages.runs("fork"), size, positions)
    moved = [(begin + each, to + each) for begin, to, count in moves for each in range(count)]
    assert moved == [(slot(pages, "a", each), slot(pages, "fork", each)) for each in range(positions)]
    assert len(moves) <= len(pages.runs("a")) + len(pages.runs("fork")) - 1


def test_kept_nodes_go_to_their_positions() -> None:
    """Those that are there already stay; the table says where both are."""
    assert kept([7, 2, 5], 4, 6, [0, 3, 5]) == [(5 * 4 + 1, 2 * 4 + 3, 1), (5 * 4 + 3, 5 * 4, 1)]
    assert kept([7, 2, 5], 4, 6, [0, 1]) == []
    assert kept([], 4, 6, []) == []
