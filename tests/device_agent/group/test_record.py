"""A session's record is enough to go on in a life that knows nothing of it."""

from __future__ import annotations

import asyncio

import torch
from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.asking.record import Record, Unanswered
from device_agent.group.messages.heads import OpenHead, RowsHead, TruncateHead

VERBS = st.lists(st.one_of(st.integers(1, 30), st.just("answer"), st.tuples(st.floats(0, 1))), max_size=40)


def played(record: Record) -> list[float]:
    """The rows that a life has which is asked all of it."""
    rows: list[float] = []
    for head, hidden, _ in record.again():
        if isinstance(head, RowsHead):
            assert hidden is not None and head.position == len(rows) and head.rows == len(hidden)
            rows += hidden[:, 0].tolist()
        elif isinstance(head, TruncateHead):
            rows = rows[: head.position]
        else:
            assert isinstance(head, OpenHead)
    return rows


@given(VERBS)
def test_replay_has_the_same_rows(verbs: list[object]) -> None:
    """Whatever was asked and answered: the rows that a new life gets are those that a life with no end would have."""
    loop = asyncio.new_event_loop()
    record, rows, number = Record(1, 10**6), [], 0.0
    waiting: list[Unanswered] = []
    for verb in verbs:
        if isinstance(verb, int):
            new = [number + each for each in range(verb)]
            number += verb
            rows += new
            waiting.append(record.forward(torch.tensor(new)[:, None], 1, loop.create_future()))
        elif verb == "answer" and waiting:
            assert record.answered(waiting.pop(0))
        elif isinstance(verb, tuple):
            rows = rows[: int(verb[0] * len(rows))]
            record.truncate(len(rows))
        assert record.position == len(rows) and played(record) == rows
    loop.close()


def test_answers_of_an_earlier_life_count_once() -> None:
    """The first answer to a forward counts, a second to the same is nothing."""
    loop = asyncio.new_event_loop()
    record = Record(1, 100)
    asked = record.forward(torch.zeros(3, 1), 3, loop.create_future())
    assert record.answered(asked) and not record.answered(asked)
    assert record.history.length == 3
    loop.close()
