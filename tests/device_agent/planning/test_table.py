"""Measured points, and what lies between and beyond them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.table import Table

AXIS = st.lists(st.integers(1, 500), min_size=1, max_size=4, unique=True).map(lambda found: tuple(sorted(found)))
SECONDS = st.floats(0, 10)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    axes = tuple(draw(st.lists(AXIS, min_size=1, max_size=3)))
    points = 1
    for axis in axes:
        points *= len(axis)
    return Table(axes, tuple(draw(st.lists(SECONDS, min_size=points, max_size=points))))


@given(tables(), st.data())
def test_measured_points_are_given_back(table: Table, data: st.DataObject) -> None:
    """Each point of the grid has exactly the seconds measured there, up to rounding."""
    at = [data.draw(st.integers(0, len(axis) - 1)) for axis in table.axes]
    flat = 0
    for axis, place in zip(table.axes, at, strict=True):
        flat = flat * len(axis) + place
    point = [axis[place] for axis, place in zip(table.axes, at, strict=True)]
    assert table(*point) == pytest.approx(table.seconds[flat], abs=1e-9)


@given(
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
    st.integers(3, 900),
    st.integers(2, 90),
)
def test_a_product_is_found_exactly_anywhere(of: tuple[float, float, float, float], rows: int, width: int) -> None:
    """What takes c + r·rows + w·width + p·rows·width is known from any grid, between its points and beyond them."""

    def seconds(rows: float, width: float) -> float:
        return of[0] + of[1] * rows + of[2] * width + of[3] * rows * width

    axes = ((3, 20, 100), (2, 10))
    table = Table(axes, tuple(seconds(row, column) for row in axes[0] for column in axes[1]))
    assert table(rows, width) == pytest.approx(seconds(rows, width), rel=1e-9, abs=1e-9)


@given(tables(), st.data())
def test_seconds_are_never_negative_and_nothing_takes_no_time(table: Table, data: st.DataObject) -> None:
    """However the points fall: beyond the last one at least as much as there."""
    sizes = [data.draw(st.floats(0, 5000)) for _ in table.axes]
    assert table(*sizes) >= 0
    assert table(*[0.0 if at == 0 else size for at, size in enumerate(sizes)]) == 0
    far = [axis[-1] for axis in table.axes]
    assert table(*[size * 7 for size in far]) >= table(*far) * (1 - 1e-12)


def test_one_point_scales() -> None:
    """With one point measured along an axis, time is in proportion."""
    assert Table(((10,),), (2.0,))(25) == 5.0


@pytest.mark.parametrize(
    ("axes", "seconds"),
    [
        ([], [1.0]),
        ([[]], []),
        ([[0, 1]], [1.0, 2.0]),
        ([[2, 2]], [1.0, 2.0]),
        ([[3, 2]], [1.0, 2.0]),
        ([[1, 2]], [1.0]),
        ([[1]], [-1.0]),
    ],
)
def test_what_is_no_grid_is_refused(axes: list[list[int]], seconds: list[float]) -> None:
    """By a message that says what is wrong."""
    with pytest.raises(ValueError):
        Table(tuple(map(tuple, axes)), tuple(seconds))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"axes": axes, "seconds": seconds}, Table)
