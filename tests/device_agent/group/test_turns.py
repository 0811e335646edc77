"""What a group is asked next: sessions go together, in order, and nobody waits for ever."""

from __future__ import annotations

import sys
from queue import Empty

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.asking.asks import GroupAsk, GroupAsks
from device_agent.group.asking.turns import (
    BATCH_ROWS,
    PATIENCE,
    PORTION_ROWS,
    SHORT_READ_ROWS,
    SHORT_ROWS,
    GroupTurn,
    GroupTurns,
)
from device_agent.group.messages.heads import (
    MAX_BATCHED,
    CloseHead,
    ForkHead,
    GroupHead,
    KeepHead,
    OpenHead,
    ReadHead,
    RowsHead,
    TruncateHead,
)


def row(session: int, position: int = 0, rows: int = 1) -> RowsHead:
    return RowsHead(session, position, rows, 1)


class Asking:
    """Turns whose items are their heads."""

    def __init__(self, stages: int = 1, cuts: bool = True, reads: bool = False, most: int = sys.maxsize) -> None:
        self.turns: GroupTurns[GroupHead] = GroupTurns(stages, cuts, reads, most)
        self.now = 0.0

    def put(self, *heads: GroupHead) -> None:
        for head in heads:
            self.turns.put(head, head, self.now)

    def next(self) -> list[tuple[GroupHead, range]]:
        return [(each.item, each.rows) for each in self.turn().portions]

    def turn(self) -> GroupTurn[GroupHead]:
        return self.turns.next(self.now)

    def answered(self, short: bool = True, after_s: float = 0.0) -> None:
        self.now += after_s
        self.turns.answered(short, self.now)


def test_rows_that_wait_for_a_step_go_together_in_the_next() -> None:
    """As many sessions as one head names, and as many rows as one step has."""
    asking = Asking()
    first, *others = (row(session) for session in range(MAX_BATCHED + 4))
    asking.put(first)
    assert asking.next() == [(first, range(1))]
    asking.put(*others)
    assert asking.next() == []
    asking.answered()
    assert asking.next() == [(each, range(1)) for each in others[:MAX_BATCHED]]
    drafts = [row(100 + session, rows=SHORT_ROWS) for session in range(5)]
    asking.put(*drafts)
    asking.answered()
    assert [each for each, _ in asking.next()] == [*others[MAX_BATCHED:], *drafts[:3]]
    assert 4 * SHORT_ROWS <= BATCH_ROWS < 5 * SHORT_ROWS


def test_others_wait_for_one_session_while_it_has_all_to_itself() -> None:
    """What was under way ends, and only it is asked, at once, until it no longer is the only one; nothing is lost."""
    asking = Asking()
    asking.put(row(1), row(2))
    assert asking.next() == [(row(1), range(1)), (row(2), range(1))]
    asking.turns.only = 3
    asking.put(row(1, 1), OpenHead(3, 60), CloseHead(2))
    assert asking.next() == [(OpenHead(3, 60), range(0))] and asking.next() == []
    asking.put(row(3, 0, 50))
    assert asking.next() == [(row(3, 0, 50), range(50))]
    asking.answered(after_s=1.0)
    asking.answered(short=False)
    asking.put(row(3, 50))
    turn = asking.turn()
    assert [each.item for each in turn.portions] == [row(3, 50)], "it does not wait for those who may come back"
    asking.turns.only = None
    asking.answered()
    asking.now += 1
    assert [asking.next(), asking.next()] == [[(CloseHead(2), range(0))], [(row(1, 1), range(1))]]


def test_sessions_that_leave_heads_out_take_steps_of_their_own() -> None:
    """And so do their forks; all others share one, however they came."""
    asking, steps = Asking(), list[set[int]]()
    asking.put(KeepHead(1, 0, b"\1"), row(2), row(1), row(3), ForkHead(4, 1, 0, 9), row(4))
    while (turn := asking.turn()).portions:
        if turn.short is not None:
            steps.append({each.item.session for each in turn.portions if isinstance(each.item, RowsHead)})
            asking.answered(turn.short)
    assert sorted(map(sorted, steps)) == [[1], [2, 3], [4]]


@given(st.lists(st.integers(1, SHORT_READ_ROWS), min_size=1, max_size=MAX_BATCHED))
def test_drafts_share_what_is_read(drafts: list[int]) -> None:
    """Where weights are read for each step, drafts of all sessions go in one, however long; a prompt does not."""
    asking = Asking(reads=True)
    heads = [row(session, rows=rows) for session, rows in enumerate(drafts)]
    asking.put(*heads, row(99, rows=SHORT_READ_ROWS + 1))
    assert [each for each, _ in asking.next()] == heads
    assert asking.turns.next(0.0).short is False


def test_one_session_stays_in_order_and_a_fork_behind_its_source() -> None:
    """What has no rows goes at once, unless rows of the same session wait."""
    asking = Asking()
    heads: list[GroupHead] = [row(1), row(1, 1), ForkHead(2, 1, 2, 9), OpenHead(3, 9), row(3), row(2, 2), CloseHead(1)]
    asking.put(*heads)
    assert asking.next() == [(heads[3], range(0))]
    assert [each for each, _ in asking.next()] == [heads[0], heads[4]]
    assert asking.next() == []
    asking.answered()
    assert [each for each, _ in asking.next()] == [heads[1]]
    assert asking.next() == [(heads[2], range(0))]
    assert asking.next() == [(heads[6], range(0))]
    asking.answered()
    assert [each for each, _ in asking.next()] == [heads[5]]


def test_rows_of_a_session_that_is_closed_are_not_asked() -> None:
    """Members would have to find room for them, and nobody wants the outputs."""
    asking = Asking()
    asking.put(row(1))
    assert asking.next() == [(row(1), range(1))]
    asking.put(row(1, 1), TruncateHead(1, 1), row(1, 1, 700), CloseHead(1), row(2))
    assert asking.next() == [(CloseHead(1), range(0))]
    asking.answered()
    assert asking.next() == [(row(2), range(1))]


def test_the_rest_of_a_prompt_whose_session_is_closed_is_not_asked() -> None:
    """Nor does the portal keep what has come of it, or comes yet; members count the session no longer than it does."""
    asks, delivered = GroupAsks(GroupTurns[GroupAsk]()), list[torch.Tensor]()
    for head in (row(1), row(2, rows=2 * PORTION_ROWS)):
        asks.put(GroupAsk(head, torch.zeros(head.rows, 4), delivered.append))
    decoding, first = asks.get(0.0), asks.get(0.0)
    assert decoding is not None and first is not None and decoding.head == row(1)
    assert isinstance(first.head, RowsHead) and first.head.rows == PORTION_ROWS
    asks.put(GroupAsk(CloseHead(2)))
    closing = asks.get(0.0)
    assert closing is not None and closing.head == CloseHead(2)
    for asked in (decoding, first):
        assert asked.deliver is not None
        asked.deliver(torch.ones(1, 4))
    with pytest.raises(Empty):
        asks.get(0.0)
    assert len(delivered) == 1 and not asks._begun


def test_a_long_prompt_goes_in_portions_by_turns_with_those_who_decode() -> None:
    """Each decode row waits for one portion at most, and the prompt for one step."""
    asking = Asking()
    asking.put(row(1))
    assert asking.next()
    long = row(2, rows=PORTION_ROWS * 2 + 5)
    asking.put(long, row(1, 1))
    assert asking.next() == [(long, range(PORTION_ROWS))]
    assert asking.next() == []
    asking.answered()
    assert asking.next() == [(row(1, 1), range(1))]
    asking.answered(short=False)
    assert asking.next() == [(long, range(PORTION_ROWS, 2 * PORTION_ROWS))]
    asking.put(row(1, 2))
    asking.answered()
    asking.answered(short=False)
    assert asking.next() == [(row(1, 2), range(1))]
    assert asking.next() == [(long, range(2 * PORTION_ROWS, long.rows))]


def test_a_long_prompt_goes_whole_where_nobody_else_decodes() -> None:
    """Nor is it cut where portions would be computed by one member; another is begun meanwhile, and not two."""
    for asking in (Asking(), Asking(cuts=False)):
        if not asking.turns._cuts:
            asking.put(row(1))
            asking.next()
        asking.put(*(row(session, rows=4000) for session in (2, 3, 4)), ReadHead((100, 200)))
        found = [asking.next(), asking.next(), asking.next()]
        assert [len(each) for each in found] == ([1, 1, 0] if asking.turns._cuts else [1, 0, 0])
        assert found[0] == [(row(2, rows=4000), range(4000))]


def test_sessions_that_come_back_soon_are_waited_for() -> None:
    """For a part of a step; those that have closed are not."""
    asking = Asking()
    asking.put(row(1))
    asking.next()
    asking.put(row(2), row(3), row(4))
    asking.answered(after_s=1.0)
    asking.put(row(1, 1))
    assert len(asking.next()) == 4  # Nobody is away.
    asking.answered(after_s=1.0)
    asking.put(row(2, 1))
    asking.now += 0.01
    wait_s = asking.turn().wait_s
    assert wait_s is not None and 0 < wait_s <= PATIENCE
    asking.put(row(3, 1), CloseHead(4))
    assert asking.next() == [(CloseHead(4), range(0))]
    assert asking.turn().wait_s is not None
    asking.put(row(1, 2))
    assert {each.session for each, _ in asking.next() if isinstance(each, RowsHead)} == {1, 2, 3}
    asking.answered(after_s=1.0)
    asking.put(row(1, 3))
    asking.now += PATIENCE
    assert asking.next() == [(row(1, 3), range(1))]


def test_a_pipeline_has_a_step_for_each_stage() -> None:
    """Its members work on different ones, and nobody is waited for."""
    asking = Asking(stages=2)
    for session in (1, 2):
        asking.put(row(session))
        assert asking.next() == [(row(session), range(1))]
    asking.put(row(3))
    assert asking.turn() == GroupTurn()
    asking.answered()
    assert asking.next() == [(row(3), range(1))]


def test_no_more_rows_are_under_way_than_may_be() -> None:
    """Several short steps and a portion beside them; one that alone has more goes by itself, and what has no rows is
    asked meanwhile."""
    asking = Asking(stages=2, most=PORTION_ROWS + 1)
    asking.put(row(1, rows=4000), row(2, rows=4000), row(3), CloseHead(4))
    assert asking.next() == [(CloseHead(4), range(0))]
    assert asking.next() == [(row(3), range(1))]
    assert asking.next() == [(row(1, rows=4000), range(PORTION_ROWS))]
    asking.put(row(5), CloseHead(3), CloseHead(6))
    assert [asking.next(), asking.next()] == [[(CloseHead(3), range(0))], [(CloseHead(6), range(0))]]
    assert asking.next() == []
    asking.answered()
    assert asking.next() == [(row(5), range(1))] and asking.next() == []
    asking.answered(short=False)
    asking.answered()
    asking.put(CloseHead(5))
    assert asking.next() == [(CloseHead(5), range(0))]
    assert asking.next() == [(row(1, rows=4000), range(PORTION_ROWS, 4000))] and asking.next() == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(1, 4), st.sampled_from([1, 3, SHORT_ROWS + 1, 700, 2000])),
            st.sampled_from(["answer", "next", "wait"]),
        ),
        max_size=60,
    ),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([1, 700, sys.maxsize]),
)
def test_all_is_asked_once_and_in_order(happens: list[object], stages: int, cuts: bool, most: int) -> None:
    """Whatever comes when: each session's rows are asked one behind the other, and in the end all of them."""
    asking = Asking(stages, cuts, most=most)
    at = dict.fromkeys(range(1, 5), 0)
    told = dict.fromkeys(range(1, 5), 0)
    under_way: list[bool] = []

    def take() -> bool:
        turn = asking.turn()
        for portion in turn.portions:
            assert isinstance(portion.item, RowsHead) and portion.rows
            assert told[portion.item.session] == portion.item.position + portion.rows.start
            told[portion.item.session] += len(portion.rows)
        assert len({each.item.session for each in turn.portions if isinstance(each.item, RowsHead)}) == len(
            turn.portions
        )
        if turn.short is not None:
            under_way.append(turn.short)
        assert under_way.count(True) <= stages and under_way.count(False) <= stages + 1
        assert most > 1 or len(under_way) <= 1
        return bool(turn.portions)

    def answer() -> None:
        if under_way:
            asking.answered(under_way.pop(0), 0.1)

    for each in happens:
        if isinstance(each, tuple):
            session, rows = each
            asking.put(row(session, at[session], rows))
            at[session] += rows
        else:
            asking.now += each == "wait"
            if each == "answer":
                answer()
            elif each == "next":
                take()
    for _ in range(1000):
        if not take():
            answer()
            asking.now += 1
    assert told == at and not under_way
