"""What a group is planned for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from device_agent.build_group import usual_work


@given(st.integers(1, 10_000))
def test_it_fits_the_model(positions: int) -> None:
    """However few positions it has: a prompt and an answer, or one text whose rows are all wanted."""
    writing, reading = usual_work(positions, reads=False), usual_work(positions, reads=True)
    assert writing.rows + writing.new <= max(positions, 1) and writing.wanted == 1
    assert reading.rows == reading.wanted <= positions and reading.new == 0
    assert positions < 384 or (writing.rows, writing.new, reading.rows) == (256, 128, 256)
