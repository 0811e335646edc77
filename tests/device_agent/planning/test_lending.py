"""Layers of which heads and columns are lent: what they hold, and what they take."""

from __future__ import annotations

from pathlib import Path

import pytest
from group_plans import OPT_1_3B, TINY, TINY_CAUSAL, formula, layer_of, profile
from groups import LENDING, plan_of
from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.holding.pieces import cache_bytes, weight_bytes
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.forms import Lent, Sharded, Whole, as_run, kept_groups, weights_of
from device_agent.planning.memory import held
from device_agent.planning.plan import GroupPlan, Layer
from device_agent.planning.shape import ModelShape
from device_agent.planning.timeline import ForwardPass, predict
from split_model.checkpoint import Checkpoint

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo"
OPT = layer_of(OPT_1_3B, 2)
SPEEDS, BYTES_S, RTT_S = (2e9, 1e9), 25e6, 1e-3


def plan(layer: Layer, *more: Layer, names: str = "ab") -> GroupPlan:
    return GroupPlan("edgeformer", tuple(names), "a", (layer, *more))


def test_a_layer_that_lends_hands_out_everything_once() -> None:
    """Groups and columns are all of the layer's, home is a member, and nothing of it is streamed or attends twice."""
    good = Lent(1, (1, 1), (0, 48))
    plan(good, good, good).check(TINY_CAUSAL)
    for layer, says in (
        (Lent(2, (1, 1), (0, 48)), "no member 2"),
        (Lent(0, (1, 2), (0, 48)), "groups"),
        (Lent(0, (1, 1), (0, 47)), "columns"),
        (Lent(0, (1, 1), (0, 48), few_rows=-1), "cannot be few"),
    ):
        with pytest.raises(ValueError, match=f"layer 1: .*{says}"):
            plan(good, layer, good).check(TINY_CAUSAL)


def test_who_holds_what_it_computes_with() -> None:
    """Home projects heads whose projections are not lent, so their lender has no weights of them; keys and values lie
    where heads are computed, and at home too where few rows are computed there alone."""
    cmha, lent, copied = (
        Lent(0, (5, 27), (8192, 0)),
        Lent(0, (5, 27), (8000, 192), True),
        Lent(0, (5, 27), (8192, 0), few_rows=4),
    )
    assert weights_of(OPT, cmha, 0) == (range(32), range(8192))
    assert weights_of(OPT, lent, 0) == (range(5), range(8000))
    attention, few = Lent(0, (5, 27), (8000, 192)), Lent(0, (5, 27), (8000, 192), few_rows=1)
    assert weights_of(OPT, attention, 0) == (range(32), range(8000))
    assert weights_of(OPT, few, 0) == (range(32), range(8192))
    assert weights_of(OPT, few, 1) == (range(0), range(8000, 8192))
    assert weights_of(OPT, cmha, 1) == (None, range(0))
    assert weights_of(OPT, lent, 1) == (range(5, 32), range(8000, 8192))
    assert [kept_groups(OPT, each, 0) for each in (cmha, lent, copied)] == [5, 5, 32]
    assert [kept_groups(OPT, each, 1) for each in (cmha, lent, copied)] == [27, 27, 27]
    of = {each.few_rows: held(OPT, plan(each, each), 100, 200) for each in (cmha, copied)}
    assert of[0]["b"].layers == 0 and of[0]["b"].cache == 2 * 2 * 27 * 64 * 200 * 4
    assert of[4]["a"].cache - of[0]["a"].cache == of[0]["b"].cache


def test_few_rows_go_where_their_keys_and_values_are() -> None:
    """By heads where projections are lent, at home where it has a copy, else to the lenders."""
    lent, copied, cmha = (
        Lent(1, (1, 1), (0, 48), True, 4),
        Lent(1, (1, 1), (0, 48), few_rows=4),
        Lent(1, (1, 1), (0, 48)),
    )
    assert as_run(lent, 4, 9) == Sharded((1, 1), (0, 48)) and as_run(lent, 5, 9) == lent
    assert as_run(copied, 4, 9) == Whole(1) and as_run(copied, 5, 9) == copied
    assert as_run(copied, 9, 9, sessions=2) == Whole(1)
    assert as_run(cmha, 1, 9) == as_run(cmha, 9, 9, sessions=2) == cmha


def test_members_are_told_the_same_layers() -> None:
    """A plan that lends is read as it was written."""
    layers = Lent(1, (1, 1), (0, 48), True, 4), Lent(0, (2, 0), (8, 40))
    told = JoinedPlan.of(plan(*layers), "d", "float32", 0, 64).written()
    assert JoinedPlan.read(told).as_planned("a").layers == layers


@given(st.booleans(), st.integers(1, 300), st.integers(0, 1), st.sampled_from([TINY, TINY_CAUSAL]))
def test_who_lends_nothing_takes_what_a_whole_layer_takes(projections: bool, rows: int, home: int, of: object) -> None:
    """In every layer, and sends as much."""
    assert isinstance(of, type(TINY))
    parts = [(of.kv_heads, 0), (0, of.kv_heads)], [(of.intermediate, 0), (0, of.intermediate)]
    layer = Lent(home, parts[0][home], parts[1][home], projections)
    measured, forward = profile(of, SPEEDS, BYTES_S), ForwardPass(rows, 0, rows)
    lent, whole = (predict(of, measured, plan(*[each] * 3), forward) for each in (layer, Whole(home)))
    assert lent.seconds == pytest.approx(whole.seconds)
    assert lent.sent == whole.sent


def test_lent_attention_takes_what_its_parts_take() -> None:
    """By hand: home projects what it lends, sends it, and computes its own heads meanwhile (Eq. 3 to 11 put right)."""
    rows, lent, own = 300, 20, 12
    home, lender = (formula(OPT, speed) for speed in SPEEDS)
    seen = (rows + 1) / 2
    home_ready = home["norm"](rows) + home["query"](rows, lent) + home["key_value"](rows, lent)
    mine = sum(home[part](rows, own) for part in ("query", "key_value", "output")) + home["attend"](rows, seen, own)
    there = rows * lent * 3 * 64 * 4 / BYTES_S + RTT_S / 2 + lender["attend"](rows, seen, lent)
    back = rows * lent * 64 * 4 / BYTES_S + RTT_S / 2
    layer_s = home_ready + max(mine, there + back) + home["output"](rows, lent)
    layer_s += home["norm"](rows) + home["up"](rows, 8192) + home["down"](rows, 8192)
    measured = profile(OPT, SPEEDS, BYTES_S, rtt_s=RTT_S)
    each = Lent(0, (own, lent), (8192, 0))
    found = predict(OPT, measured, plan(each, each), ForwardPass(rows, 0, rows))
    assert found.seconds == pytest.approx(home["embedding"](rows) + 2 * layer_s + home["head"](rows), rel=1e-6)
    assert found.sent[0] == (rows * lent * 3 * 64 * 4, rows * lent * 64 * 4)


def test_lent_projections_and_columns_take_what_their_parts_take() -> None:
    """By hand: rows there, a partial sum back, for the heads and for the MLP."""
    rows, groups, columns = 300, (20, 12), (6000, 2192)
    parts = [formula(OPT, speed) for speed in SPEEDS]
    seen, moved = (rows + 1) / 2, rows * 2048 * 4 / BYTES_S + RTT_S / 2

    def attention(member: int) -> float:
        of, count = parts[member], groups[member]
        return sum(of[part](rows, count) for part in ("query", "key_value", "output")) + of["attend"](rows, seen, count)

    def mlp(member: int) -> float:
        return sum(parts[member][part](rows, columns[member]) for part in ("up", "down"))

    layer_s = 2 * parts[0]["norm"](rows)
    layer_s += max(attention(0), 2 * moved + attention(1)) + max(mlp(0), 2 * moved + mlp(1))
    measured = profile(OPT, SPEEDS, BYTES_S, rtt_s=RTT_S)
    each = Lent(0, groups, columns, True)
    found = predict(OPT, measured, plan(each, each), ForwardPass(rows, 0, rows))
    ends = parts[0]["embedding"](rows) + parts[0]["head"](rows)
    assert found.seconds == pytest.approx(ends + 2 * layer_s, rel=1e-6)
    assert found.sent[1] == (2 * rows * 2048 * 4, 2 * rows * 2048 * 4)
    last = predict(OPT, measured, plan(each, each), ForwardPass(rows, 0, 7)).sent[1]
    assert last == ((rows + 7) * 2048 * 4, 2 * 7 * 2048 * 4)  # Only the rows that are wanted go on.


@pytest.mark.parametrize("form", [form for form in LENDING if form != "edgeformer"])
def test_planned_bytes_are_those_that_members_hold(form: str) -> None:
    """Weights, and keys and values, of every member, one of whom has nothing of its own."""
    spec = Checkpoint.open(DEMO).spec
    lent, names = plan_of(spec, form, ["a", "b", "c"], (1.0, 0.0, 1.0)), "abc"
    found = held(ModelShape.of(spec, "float32"), lent, 10, 40)
    for place, name in enumerate(names):
        assert found[name].layers == weight_bytes(lent.layers, 0, place, spec, "float32")
        assert found[name].cache == cache_bytes(lent.layers, place, spec, 40, 4)
