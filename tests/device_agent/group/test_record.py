"""A session's record is enough to go on in a life that knows nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.asking.reached import Reached
from device_agent.group.asking.record import Record, Unanswered
from device_agent.group.messages.heads import (
    BatchHead,
    CloseHead,
    ForkHead,
    GroupHead,
    KeepHead,
    OpenHead,
    ResumeHead,
    RowsHead,
    SourceHead,
    TruncateHead,
)

VERBS = st.lists(st.one_of(st.integers(1, 30), st.just("answer"), st.tuples(st.floats(0, 1))), max_size=40)


def played(record: Record, had: Sequence[float] | None = None) -> list[float]:
    """The rows that a life has which is asked all of it; ``had``: those that it has been handed over."""
    rows: list[float] = []
    for head, hidden, _ in record.again(None if had is None else len(had)):
        if isinstance(head, RowsHead):
            assert hidden is not None and head.position == len(rows) and head.rows == len(hidden)
            rows += hidden[:, 0].tolist()
        elif isinstance(head, TruncateHead):
            rows = rows[: head.position]
        elif isinstance(head, ResumeHead):
            assert had is not None and head.position <= len(had) and head.positions == record.positions
            rows = list(had[: head.position])
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
        # A life that ends in order has answered all that it was told: it has what is answered, or was cut later.
        answered = record.history.rows(0, record.history.length)[:, 0].tolist() if record.history.length else []
        for had in (answered, [*answered, -1.0], answered[:-1]):
            assert played(record, had) == rows
    loop.close()


def test_a_life_knows_where_each_session_is() -> None:
    """By what members were told, in order; not of those that leave heads out, or are about another text."""
    told: list[GroupHead] = [OpenHead(number, 99) for number in range(1, 6)]
    told += [RowsHead(1, 0, 5, 1), BatchHead((RowsHead(1, 5, 2, 2), RowsHead(2, 0, 3, 3))), TruncateHead(1, 4)]
    told += [ForkHead(6, 1, 2, 99), KeepHead(3, 0, b"1"), RowsHead(3, 0, 4, 1), SourceHead(4, 7), ForkHead(7, 3, 2, 99)]
    told += [CloseHead(5), ResumeHead(8, 99, 30), RowsHead(8, 30, 1, 1)]
    reached = Reached()
    for each in told:
        reached.told(each)
    assert reached.sessions == {1: 4, 2: 3, 6: 2, 8: 31}


def test_answers_of_an_earlier_life_count_once() -> None:
    """The first answer to a forward counts, a second to the same is nothing."""
    loop = asyncio.new_event_loop()
    record = Record(1, 100)
    asked = record.forward(torch.zeros(3, 1), 3, loop.create_future())
    assert record.answered(asked) and not record.answered(asked)
    assert record.history.length == 3
    loop.close()
