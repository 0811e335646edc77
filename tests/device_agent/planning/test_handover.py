"""Who gives keys and values to whom where one plan follows another, and whether that is faster than a replay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_plans import GPT2, OPT_1_3B, layer_of, profile, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.forms import ByRows, Hybrid, Layer, Lent, Sharded, Whole
from device_agent.planning.handover import Gift, can_hand_over, gifts, handover, kept_at
from device_agent.planning.plan import GroupPlan
from device_agent.planning.task import Work
from split_model.offload.units import Unit

GROUPS, COLUMNS = 8, 40


def plan(names: str, *layers: Layer) -> GroupPlan:
    """Members are called by single letters, the first is the portal."""
    return GroupPlan("edgeformer", tuple(names), names[0], layers)


@st.composite
def layers(draw: st.DrawFn, members: int) -> Layer:
    """Of any form."""
    shares = draw(st.lists(st.integers(0, GROUPS), min_size=members - 1, max_size=members - 1))
    ends = sorted(shares)
    groups = tuple(end - begin for begin, end in zip([0, *ends], [*ends, GROUPS], strict=True))
    columns = (COLUMNS, *[0] * (members - 1))
    member = draw(st.integers(0, members - 1))
    sharded = Sharded(groups, columns)
    lent, rows = Lent(member, groups, columns), (1.0,) * members
    forms: list[Layer] = [Whole(member), sharded, Hybrid(groups, columns, rows)]
    forms += [ByRows(rows, sharded), ByRows(rows, Whole(member))]
    forms += [lent, replace(lent, projections=True), replace(lent, few_rows=2)]
    return draw(st.sampled_from(forms))


@given(st.data(), st.sampled_from(["ab", "abc", "b", "acb"]), st.sampled_from(["abc", "ca", "b", "abcd"]))
def test_all_members_have_what_they_keep_behind_it(data: st.DataObject, first: str, second: str) -> None:
    """What a member had and what it was given is what the next plan has it keep; nobody is given what he has, or what
    the giver has not; all groups are kept by one member each."""
    before, after = (plan(names, data.draw(layers(len(names)))) for names in (first, second))
    had, wanted = (
        {name: set(kept_at(each.layers[0], at, GROUPS)) for at, name in enumerate(each.members)}
        for each in (before, after)
    )
    for kept in (had, wanted):
        assert sorted(group for groups in kept.values() for group in groups) == list(range(GROUPS))
    if not can_hand_over(before, after):
        assert set(first) - set(second) and set(second) - set(first)
        return
    there = {name: set(groups) & wanted.get(name, set()) for name, groups in had.items()}
    for gift in gifts(before, after, GROUPS):
        assert set(gift.groups) <= had[gift.source] and not set(gift.groups) & had.get(gift.target, set())
        there[gift.target] = there.get(gift.target, set()) | set(gift.groups)
    assert {name: there.get(name, set()) for name in wanted} == wanted


def test_lent_heads_are_called_home_by_hand() -> None:
    """Of a lender that leaves its groups go home; where home has copies nothing goes."""
    lent = Lent(0, (5, 3), (COLUMNS, 0))
    alone = plan("a", Whole(0), Whole(0))
    assert gifts(plan("ab", lent, lent), alone, GROUPS) == [Gift(at, "b", "a", range(5, 8)) for at in (0, 1)]
    assert gifts(plan("ab", *[replace(lent, few_rows=1)] * 2), alone, GROUPS) == []
    assert gifts(alone, plan("ab", lent, Whole(1)), GROUPS) == [
        Gift(0, "a", "b", range(5, 8)),
        Gift(1, "a", "b", range(8)),
    ]


def test_what_is_counted_or_gone_is_not_handed_over() -> None:
    """Rows of counted sessions may lie elsewhere; and of a member that has left nothing is to be had once another has
    come in its place."""
    kept = plan("ab", Whole(0), Whole(1))
    assert can_hand_over(kept, plan("a", Whole(0), Whole(0))) and can_hand_over(kept, kept)
    assert not can_hand_over(kept, plan("ac", Whole(0), Whole(1)))
    assert not can_hand_over(kept, plan("a", Whole(0)))
    for counted in (replace(kept, cache_bytes=(1, 1)), replace(kept, streamed=((Unit(0, "mlp"),), ()))):
        assert not can_hand_over(kept, counted) and not can_hand_over(counted, kept)


OPT = replace(layer_of(OPT_1_3B, 1), dtype_bytes=2, layers=24)


def test_the_faster_way_by_hand() -> None:
    """On fast links keys and values move, on slow ones they are made anew; where home has them, neither takes long."""
    lent = Lent(0, (20, 12), (8192, 0), True)
    before, after = plan("ab", *[lent] * 24), plan("a", *[Whole(0)] * 24)
    size = 24 * 2 * 12 * 64 * 500 * 2
    for bytes_s, pays in ((1e9, True), (1e3, False)):
        asked = task(OPT, profile(OPT, [1e9, 1e9], bytes_s, rtt_s=0.0), Work(64))
        names = dict(zip("ab", asked.members, strict=True))
        first, then = (
            replace(each, members=tuple(names[name] for name in each.members), portal=names["a"])
            for each in (before, after)
        )
        found = handover(asked, first, then, [300, 0, 200])
        assert found.pays == pays and found.moved_s == pytest.approx(size / bytes_s)
        copied = replace(lent, projections=False, few_rows=1)
        free = handover(asked, replace(first, layers=(copied,) * 24), then, [500])
        assert free.moved_s == 0 and free.pays


@settings(max_examples=10)
@given(st.integers(1, 2000), st.sampled_from([1e5, 1e7, 1e9]))
def test_a_port_sends_one_gift_after_the_other(positions: int, bytes_s: float) -> None:
    """What one member gives two others takes twice as long as what it gives one; two that give one another side by
    side take no longer."""
    of = replace(layer_of(GPT2, 1), layers=1)
    asked = task(of, profile(of, [1e9] * 3, bytes_s, rtt_s=0.0), Work(4))
    first = asked.members[0]

    def took(before: Layer, after: Layer) -> float:
        one, other = (GroupPlan("edgeformer", asked.members, first, (each,)) for each in (before, after))
        return handover(asked, one, other, [positions]).moved_s

    columns = (of.intermediate, 0, 0)
    one = took(Whole(0), Sharded((8, 4, 0), columns))
    assert took(Whole(0), Sharded((4, 4, 4), columns)) == pytest.approx(2 * one)
    assert took(Sharded((8, 4, 0), columns), Sharded((4, 4, 4), columns)) == pytest.approx(one)
    assert all(took(each, each) == 0 for each in (Whole(1), Sharded((8, 4, 0), columns)))
