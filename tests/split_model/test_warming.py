"""Sizes of forwards before the first request: all of them where there is time, and no more than that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from split_model.warming import FEW_ROWS, WARM_ROWS, WARM_UP_S, Warming


def run(most_rows: int, base_s: float, row_s: float) -> tuple[list[int], float]:
    """The sizes that are run where a forward takes so long, and for how long."""
    now, sizes, warming = 100.0, [], Warming(most_rows, 100.0)
    while (rows := warming.next(now)) is not None:
        sizes.append(rows)
        now += max(base_s, row_s * rows)
    assert warming.done == len(sizes)
    return sizes, now - 100.0


def test_where_there_is_time_all_sizes_are_run() -> None:
    """Up to the largest that occurs, each once."""
    assert run(512, 0.001, 0.0)[0] == list(WARM_ROWS)
    assert run(5, 0.0, 0.0)[0] == [1, 2, 3, 4, 5] and run(0, 0.0, 0.0)[0] == []


@given(st.integers(1, 600), st.floats(0.0, 5.0))
def test_it_ends_in_time(most_rows: int, base_s: float) -> None:
    """A size that would take longer than what is left is not begun; the first one, of which nothing is known, is."""
    sizes, took_s = run(most_rows, base_s, base_s / FEW_ROWS)
    assert sizes[:1] == [1] and took_s <= max(WARM_UP_S, base_s) + 1e-6
