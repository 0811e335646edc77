"""Heads come out as they went in, and nothing else is taken for one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.messages.heads import (
    HEAD_BYTES,
    MAX_PLAN_BYTES,
    MAX_POSITIONS,
    MAX_ROWS,
    MAX_TEXTS,
    BadGroupHead,
    CloseHead,
    EndHead,
    ForkHead,
    HandHead,
    IdleHead,
    OpenHead,
    ReadHead,
    ResumeHead,
    RowsHead,
    SourceHead,
    TruncateHead,
    read,
    written,
)

NUMBER, POSITION = 2**32 - 1, MAX_POSITIONS


@pytest.mark.parametrize(
    "head",
    [
        OpenHead(NUMBER, POSITION),
        RowsHead(NUMBER, POSITION, MAX_ROWS, MAX_ROWS),
        ReadHead((MAX_ROWS // MAX_TEXTS,) * MAX_TEXTS),
        ReadHead((MAX_ROWS,)),
        SourceHead(NUMBER, MAX_ROWS),
        TruncateHead(1, 0),
        ForkHead(NUMBER, NUMBER - 1, POSITION, POSITION),
        CloseHead(7),
        HandHead(MAX_PLAN_BYTES, next=True),
        ResumeHead(NUMBER, POSITION, POSITION),
        IdleHead(),
        EndHead(),
    ],
)
def test_round_trip(head: OpenHead) -> None:
    """The largest numbers fit."""
    assert written(head).shape == (HEAD_BYTES,) and read(written(head)) == head


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES))
def test_anything_else_is_refused(data: bytes) -> None:
    """Bytes of any kind are a head that could have been written, or a ``BadGroupHead``."""
    try:
        head = read(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    except BadGroupHead:
        return
    assert read(written(head)) == head


@pytest.mark.parametrize(
    "head",
    [
        RowsHead(1, 0, 2, 3),
        RowsHead(1, 0, 0, 0),
        RowsHead(1, 0, MAX_ROWS + 1, 0),
        OpenHead(1, POSITION + 1),
        SourceHead(1, 0),
        HandHead(0, next=False),
        HandHead(MAX_PLAN_BYTES + 1, next=False),
        SourceHead(1, MAX_ROWS + 1),
        ReadHead(()),
        ReadHead((3, 0)),
        ReadHead((MAX_ROWS, 1)),
        ReadHead((1,) * (MAX_TEXTS + 1)),
    ],
)
def test_numbers_out_of_range_are_refused(head: RowsHead | ReadHead | OpenHead | SourceHead | HandHead) -> None:
    """More rows are wanted than there are, none or too many come, a session is too long, or a text has no rows."""
    with pytest.raises(BadGroupHead):
        read(written(head))
