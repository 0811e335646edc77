"""Whose keys and values may lie at whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_plans import profile, shape, task
from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.describe import description
from device_agent.planning.facts import plan_facts
from device_agent.planning.moves import Transfer
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.task import Task, Work
from device_agent.planning.thresholds import Relief, Thresholds
from device_agent.planning.transfers import Room, lodged, transfer_words, with_transfers
from split_model.offload.units import HALVES, Unit

OF = shape(12, 64, 4, 256, 50, kv_heads=2, gated=True, causal=True, norm_first=True, rotary=True, positions=0)
PLAN = GroupPlan("lime", ("a", "b", "c"), "a", tuple(Whole(number % 3) for number in range(12)))


def asked(disk: float) -> Task:
    """Three devices that read so many bytes a second."""
    return task(OF, profile(OF, [3e7] * 3, 1e7, disks=disk), Work(16, 16, room=900))


def counting(*rooms: int) -> GroupPlan:
    """Memory for keys and values at each, and a ring for whatever is streamed then."""
    largest = max(PLAN.unit_bytes(OF, 0, Unit(0, half)) for half in HALVES)
    return replace(PLAN, cache_bytes=rooms, streamed=((),) * 3, ring_bytes=(2 * largest,) * 3)


def test_who_streams_first_moves_to_who_streams_last() -> None:
    """Only where it waits for its disk then; members are told, and the plan is the same but for that."""
    plan = with_transfers(asked(1e5), counting(2_500_000, 4_000_000, 9_000_000))
    plan.check(OF)
    assert [each and each.target for each in plan.transfers] == [2, None, None]
    transfer = plan.transfers[0]
    assert transfer is not None and transfer.bytes_s == 1e7
    assert transfer.uncovered_s[0] == 0 < transfer.uncovered_s[1] <= transfer.uncovered(100)
    without = replace(plan, transfers=())
    assert without == counting(2_500_000, 4_000_000, 9_000_000)
    line = "oldest keys and values may lie elsewhere before more is streamed: a's at c"
    assert transfer_words(plan) == line in description(asked(1e5), plan).splitlines()
    assert transfer_words(without) == "" and "elsewhere" not in description(asked(1e5), without)
    assert plan_facts(asked(1e5), plan)["keys_values_may_lie_at"] == {"a": "c", "b": None, "c": None}
    joined = JoinedPlan.of(plan, "", "float32", 0, 0)
    assert JoinedPlan.read(joined.written()).as_planned(plan.portal) == plan
    assert with_transfers(asked(1e12), counting(2_500_000, 4_000_000, 9_000_000)).transfers == ()


def test_nothing_moves_where_nobody_gains() -> None:
    """Plans that do not count keys and values; and members that are alike."""
    assert with_transfers(asked(1e5), PLAN) == PLAN
    alike = counting(4_000_000, 4_000_000, 4_000_000)
    assert with_transfers(asked(1e5), alike) == alike


@pytest.mark.parametrize("transfers", [((None,) * 2), (Transfer(1, 1, 0, (1,)), Transfer(2, 1, 0, (1,)), None)])
def test_plans_that_cannot_be_are_refused(transfers: tuple[Transfer | None, ...]) -> None:
    """For fewer members than there are; and to members whose own go elsewhere."""
    with pytest.raises(ValueError, match="keys and values"):
        replace(counting(1, 1, 1), transfers=transfers).check(OF)
    with pytest.raises(ValueError, match="where they are counted"):
        replace(PLAN, transfers=(Transfer(1, 1, 0, (1,)), None, None)).check(OF)


rising = st.lists(st.integers(1, 500), max_size=4, unique=True).map(sorted)


@given(rising, rising, st.integers(1, 9), st.integers(1, 9), st.integers(1, 600), st.integers(0, 3000))
def test_room(own: list[int], other: list[int], layers: int, others: int, tokens: int, rows: int) -> None:
    """What fits before the other streams more fits whatever it streams; as many tokens as rows count for fill that room
    and no more; and rows that are away let the member have more tokens before it streams more."""
    made = [Thresholds(tuple(Relief(at, ()) for at in steps), 700) for steps in (own, other)]
    room = Room(made[0], made[1], layers, others)
    soft, hard = room.soft(tokens), room.hard(tokens)
    assert soft <= hard
    level = made[1].level(tokens)
    if soft > 0:
        assert made[1].level(tokens + lodged(soft, others)) == level
        assert made[1].level(tokens + lodged(soft + 1, others)) > level or soft == hard
    needed = room.needed(tokens, rows, moves=False)
    assert room.needed(tokens, rows, moves=True) * (layers + 1) == needed * (layers + 1) + room.copied
    assert tokens - needed == rows // (layers + 1) and room.until(needed) >= room.until(tokens)
