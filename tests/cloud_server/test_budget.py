"""The step's budget keeps short work within its slack and lets chunks go on."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from cloud_server.schedule.budget import Due, step_budget
from cloud_server.schedule.plan import CHUNK_SHARE, Budget, Demand
from cloud_server.schedule.scheduler import MIN_CHUNK_ROWS


def test_chunks_alone_may_fill_the_step() -> None:
    """With nobody waiting for a token there is nothing to hold them back for."""
    assert step_budget(lambda rows: float(rows), Demand(0, 0, 3), Due(), 1.5, 512) == Budget(512, 512)


def test_chunks_take_what_the_slack_leaves() -> None:
    """A step of 10 ms and 0.1 ms a row: 20 short rows take 12 ms, half as long again leaves room for 60 more."""
    assert step_budget(lambda rows: 0.010 + 0.0001 * rows, Demand(20, 20, 1), Due(), 1.5, 512) == Budget(512, 60)


def test_who_is_far_away_notices_a_longer_step_less() -> None:
    """An answer takes the step's 12 ms and 20.1 ms away: half as long again is 28.05 ms of step, with room for 160 rows
    and not for the 60 that half of the step's own time leaves."""
    due = Due(0, 0.0, 0.0201)
    assert step_budget(lambda rows: 0.010 + 0.0001 * rows, Demand(20, 20, 1), due, 1.5, 512) == Budget(512, 160)


def test_few_decoders_wait_for_many_prompts() -> None:
    """Where half as many wait as decode, the half becomes four times as much; where a quarter or less do, it stays a
    half; and one decoder beside three prompts holds nobody up."""

    def chunk_rows(short: int, chunks: int) -> int:
        budget = step_budget(lambda rows: 100.0 + rows, Demand(12, short, chunks), Due(), 1.5, 2000)
        assert budget is not None
        return budget.chunk_rows

    assert chunk_rows(12, 1) == chunk_rows(12, 3) == 56
    assert chunk_rows(12, 6) == 4 * 56
    assert chunk_rows(1, 3) == 2000 - 12


def test_the_time_away_counts_as_often_as_the_step() -> None:
    """Steps of 112 for 12 decoders that are away for 50: beside half as many prompts the half is four times as much of
    162, thus 324 rows; and a step of chunks alone takes as much more than the 8 until the next decoder is due."""

    def predict(rows: int) -> float:
        return 100.0 + rows

    assert step_budget(predict, Demand(12, 12, 6), Due(0, 0.0, 50.0), 1.5, 2000) == Budget(2000, 324)
    assert step_budget(predict, Demand(0, 0, 6), Due(12, 8.0, 50.0), 1.5, 2000) == Budget(232, 232)


def test_chunks_get_the_least_without_any_slack() -> None:
    """They go on, slowly, when every row more makes the step too long."""
    assert step_budget(lambda rows: float(rows), Demand(1, 1, 1), Due(), 1.0, 512) == Budget(512, MIN_CHUNK_ROWS)


def test_an_unknown_step_time_allows_all() -> None:
    """Before anything was measured, all steps look alike."""
    assert step_budget(lambda rows: 0.0, Demand(12, 12, 1), Due(), 1.5, 512) == Budget(512, 500)


def test_decoders_that_are_due_do_not_find_a_long_step_under_way() -> None:
    """A step of chunks alone ends when the next decoder is due, or as much later as its own step may be longer; where
    no chunk is short enough for that, the decoder is waited for."""

    def chunks_alone(due_s: float, sessions: int, away_s: float = 0.0) -> Budget | None:
        due = Due(sessions, due_s, away_s)
        return step_budget(lambda rows: 0.020 + 0.0001 * rows, Demand(0, 0, 1), due, 1.5, 512)

    assert chunks_alone(0.030, 10) == Budget(205, 205)
    assert chunks_alone(0.030, 10, away_s=0.0401) == Budget(405, 405)
    assert chunks_alone(0.005, 10) is None
    assert chunks_alone(0.005, 10, away_s=0.0105) is None
    assert chunks_alone(0.005, 10, away_s=0.0107) == Budget(8, 8)
    assert chunks_alone(10.0, 10) == chunks_alone(0.0, 0) == Budget(512, 512)


@given(
    st.lists(st.floats(0, 1), min_size=300, max_size=300).map(sorted),
    st.integers(1, 400),
    st.floats(1, 4),
    st.integers(4, 299),
    st.floats(0, 2),
)
def test_the_most_that_fits(seconds: list[float], short_rows: int, slack: float, max_rows: int, away_s: float) -> None:
    """For every monotone step time it is what trying all would find, within the least and the room there is."""
    due = Due(away_s=away_s)
    budget = step_budget(lambda rows: seconds[rows], Demand(short_rows, short_rows, 1), due, slack, max_rows)
    short = min(short_rows, max_rows - max_rows // CHUNK_SHARE)
    more = (slack - 1) * max(1, 4 / short_rows) ** 2
    allowed = seconds[short] + more * (away_s + seconds[short])
    most = bisect_right(seconds, allowed) - 1 - short
    assert budget is not None and budget.rows == max_rows
    assert budget.chunk_rows == min(max(most, MIN_CHUNK_ROWS), max_rows - short)
