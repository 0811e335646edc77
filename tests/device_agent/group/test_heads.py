"""Heads come out as they went in, and nothing else is taken for one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.heads import (
    HEAD_BYTES,
    MAX_POSITIONS,
    MAX_ROWS,
    BadHead,
    Close,
    End,
    Fork,
    Idle,
    Open,
    Step,
    Truncate,
    read,
    written,
)

NUMBER, POSITION = 2**32 - 1, MAX_POSITIONS


@pytest.mark.parametrize(
    "head",
    [
        Open(NUMBER, POSITION),
        Step(NUMBER, POSITION, MAX_ROWS, MAX_ROWS),
        Truncate(1, 0),
        Fork(NUMBER, NUMBER - 1, POSITION, POSITION),
        Close(7),
        Idle(),
        End(),
    ],
)
def test_round_trip(head: Open) -> None:
    """The largest numbers fit."""
    assert written(head).shape == (HEAD_BYTES,) and read(written(head)) == head


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES))
def test_anything_else_is_refused(data: bytes) -> None:
    """Bytes of any kind are a head that could have been written, or a ``BadHead``."""
    try:
        head = read(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    except BadHead:
        return
    assert read(written(head)) == head


@pytest.mark.parametrize(
    "head", [Step(1, 0, 2, 3), Step(1, 0, 0, 0), Step(1, 0, MAX_ROWS + 1, 0), Open(1, POSITION + 1)]
)
def test_numbers_out_of_range_are_refused(head: Step | Open) -> None:
    """More rows are wanted than there are, none or too many come, or a session is too long."""
    with pytest.raises(BadHead):
        read(written(head))
