"""What plans take, beside sums that are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from group_plans import GPT2, LLAMA_8B, TINY, TINY_CAUSAL, layer_of, profile, shape
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Sharded, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import handed_out
from device_agent.planning.timeline import ForwardPass, Prediction, predict

NAMES = "abcdef"
FAST = 1e15
BERT = layer_of(shape(24, 1024, 16, 4096, 30522, head_rows=2, tied=False), 6)


def plan(of: ModelShape, layer: Layer, members: int, portal: str = "a") -> GroupPlan:
    return GroupPlan("test", tuple(NAMES[:members]), portal, (layer,) * of.layers)


def layers_for(
    of: ModelShape, members: int, shares: list[float] | None = None, overlap: bool = True
) -> dict[str, Layer]:
    shares = shares or [1.0] * members
    groups, columns = handed_out(of.kv_heads, shares), handed_out(of.intermediate, shares)
    rows = tuple(shares)
    found: dict[str, Layer] = {
        "whole": Whole(members - 1),
        "tensor": Sharded(groups, columns),
        "scheme-1": Hybrid(groups, columns, rows, overlap=overlap),
        "scheme-2": Hybrid(groups, columns, rows, mlp_by_rows=True, overlap=overlap),
        "hidden": ByRows(rows, Whole(0), overlap=overlap),
        "keys": ByRows(rows, Whole(0), keys_values=True, overlap=overlap),
    }
    if of.causal:
        found["prefix"] = ByRows(rows, Whole(members - 1), prefix=True)
        found["key-prefix"] = ByRows(rows, Whole(members - 1), prefix=True, keys_values=True)
    return found


def of_layers(found: Prediction, member: int = 0) -> list[float]:
    return [row[member] for row in found.sent]


@pytest.mark.parametrize("of", [TINY, TINY_CAUSAL, replace(TINY, cross_layers=1)], ids=["all", "causal", "cross"])
@pytest.mark.parametrize("rows", [1, 5])
def test_alone_every_mode_takes_what_the_parts_take(of: ModelShape, rows: int) -> None:
    """One member that is the portal: no bytes, and the same seconds for all, but the last layer's rows nobody wants."""
    measured = profile(of, [1e6], 1e6, overhead_s=1e-3)
    forward = ForwardPass(rows, 3, wanted=rows)
    found = [predict(of, measured, plan(of, layer, 1), forward) for layer in layers_for(of, 1).values()]
    assert [one.seconds for one in found] == pytest.approx([found[0].seconds] * len(found))
    assert all(one.seconds == pytest.approx(one.busy[0]) and not any(map(any, one.sent)) for one in found)


@pytest.mark.parametrize("members", [2, 3, 6])
@pytest.mark.parametrize(("name", "operations"), [("hidden", 1), ("scheme-2", 2), ("tensor", 4), ("scheme-1", 4)])
def test_bytes_are_those_of_the_papers(name: str, operations: int, members: int) -> None:
    """With even shares each device sends exactly (K - 1) N F / K elements a layer by Voltage, four times as many by
    tensor parallelism, and by Galaxy+'s schemes as many as their gathers and scatters have."""
    of = BERT
    found = predict(of, profile(of, [1e9] * 6, 1e7), plan(of, layers_for(of, members)[name], members), ForwardPass(300))
    even = (members - 1) * 300 * of.hidden * of.dtype_bytes // members
    for member in range(members):
        # Inside the model; the first layer gets nothing, and the last output goes to the portal alone.
        assert of_layers(found, member)[1:-1] == [operations * even] * (of.layers - 2)


def test_uneven_shares_send_all_but_the_successors_part() -> None:
    """Member i sends (1 - p of its successor) N F."""
    of, shares = BERT, [0.5, 0.2, 0.3]
    found = predict(of, profile(of, [1e9] * 3, 1e7), plan(of, layers_for(of, 3, shares)["hidden"], 3), ForwardPass(200))
    total = 200 * of.row_bytes
    for member, after in ((0, 0.2), (1, 0.3), (2, 0.5)):
        assert of_layers(found, member)[1:-1] == [pytest.approx((1 - after) * total)] * (of.layers - 2)


def test_the_last_output_goes_to_the_portal_alone() -> None:
    """Wanted rows only: nothing is gathered behind the last layer."""
    of = BERT
    for wanted in (1, 90):
        found = predict(
            of, profile(of, [1e9] * 3, 1e7), plan(of, layers_for(of, 3)["hidden"], 3), ForwardPass(90, wanted=wanted)
        )
        expected = [0, max(wanted - 60, 0) and 30, min(wanted, 30)]
        assert [of_layers(found, member)[-1] for member in range(3)] == [rows * of.row_bytes for rows in expected]


def test_grouped_keys_and_values_are_fewer_bytes() -> None:
    """With eight query heads to a KV head they are a quarter of the hidden states: 2 F_kv / F."""
    of = layer_of(replace(LLAMA_8B, kv_heads=4), 4)
    measured = profile(of, [1e9] * 4, 1e7)
    hidden, keys = (
        predict(of, measured, plan(of, layers_for(of, 4)[name], 4), ForwardPass(128)) for name in ("hidden", "keys")
    )
    assert 2 * of.kv_size * 4 == of.hidden
    assert of_layers(keys)[1] * 4 == of_layers(hidden)[1]


def test_prefixes_halve_the_bytes() -> None:
    """Who comes earlier gets nothing from later rows: half of all bytes with even cuts."""
    of = layer_of(GPT2, 4)
    measured = profile(of, [1e9] * 4, 1e7)
    hidden, prefix = (
        predict(of, measured, plan(of, layers_for(of, 4)[name], 4), ForwardPass(128)) for name in ("hidden", "prefix")
    )
    assert 2 * sum(prefix.sent[1]) == sum(hidden.sent[1])
    assert of_layers(prefix, 3)[1] == 0


@pytest.mark.parametrize("name", ["tensor", "scheme-1", "scheme-2", "hidden", "keys", "prefix", "key-prefix"])
def test_layers_that_are_alike_may_be_played_once(name: str) -> None:
    """The shortcut for a long row of equal layers changes nothing: the same rows by other ratios are not equal."""
    of = layer_of(TINY_CAUSAL, 9)
    measured = profile(of, [1e6, 3e6, 2e6], 1e5, overhead_s=1e-4)
    layer = layers_for(of, 3, [0.2, 0.5, 0.3])[name]
    twice = layer
    if isinstance(layer, (Hybrid, ByRows)):
        twice = replace(layer, rows=tuple(2 * share for share in layer.rows))
    at_once = predict(of, measured, plan(of, layer, 3), ForwardPass(40))
    mixed = replace(plan(of, layer, 3), layers=tuple((layer, twice)[number % 2] for number in range(9)))
    one_by_one = predict(of, measured, mixed, ForwardPass(40))
    assert at_once.seconds == pytest.approx(one_by_one.seconds, rel=1e-6)
    assert at_once.busy == pytest.approx(one_by_one.busy, rel=1e-6)
    assert at_once.sent == one_by_one.sent


@pytest.mark.parametrize("overlap", [True, False])
def test_on_free_links_the_slowest_member_of_each_block_counts(overlap: bool) -> None:
    """Galaxy+'s Eq. 5 to 7 without communication, where nothing overlaps; overlapping makes it no slower."""
    of = TINY
    measured = profile(of, [1e6, 2e6, 4e6], FAST, rtt_s=0)
    layer = layers_for(of, 3, [0.25, 0.25, 0.5], overlap)["scheme-2"]
    assert isinstance(layer, Hybrid)
    rows, parts = 40, handed_out(40, layer.rows)
    costs = {device.name: device.seconds for device in measured.devices}

    def slowest(*products: tuple[str, Callable[[int], tuple[int, ...]]]) -> float:
        """Of the members the one that takes longest for these parts, each with its own sizes."""
        return max(sum(costs[name][part](*sizes(at)) for part, sizes in products) for at, name in enumerate("abc"))

    attention = slowest(
        ("query", lambda at: (rows, layer.groups[at])),
        ("key_value", lambda at: (rows, layer.groups[at])),
        ("attend", lambda at: (rows, rows, layer.groups[at])),
        ("output", lambda at: (rows, layer.groups[at])),
    )
    by_rows = slowest(
        ("norm", lambda at: (parts[at],)),
        ("up", lambda at: (parts[at], of.intermediate)),
        ("down", lambda at: (parts[at], of.intermediate)),
        ("norm", lambda at: (parts[at],)),
    )
    ends = costs["a"]["embedding"](rows) + costs["a"]["head"](1)
    found = predict(of, measured, plan(of, layer, 3), ForwardPass(rows)).seconds
    expected = ends + of.layers * (attention + by_rows)
    assert found == pytest.approx(expected, rel=1e-3) if not overlap else found <= expected * (1 + 1e-3)


@given(st.data())
@settings(max_examples=60)
def test_no_plan_beats_its_busiest_member_or_its_bytes(data: st.DataObject) -> None:
    """Whatever the shares, speeds and links: where all rows are wanted it is not faster than what anybody computes, nor
    than what anybody sends before the last layer."""
    of = data.draw(st.sampled_from([TINY, TINY_CAUSAL]))
    members = data.draw(st.integers(1, 4))
    speeds = data.draw(st.lists(st.floats(1e5, 1e7), min_size=members, max_size=members))
    shares = data.draw(st.lists(st.floats(0.1, 1), min_size=members, max_size=members))
    bytes_s, small = data.draw(st.floats(1e4, 1e8)), data.draw(st.sampled_from([0, 10**9]))
    measured = profile(of, speeds, bytes_s, one_shot_bytes=small)
    for layer in layers_for(of, members, shares, data.draw(st.booleans())).values():
        found = predict(of, measured, plan(of, layer, members), ForwardPass(60, wanted=60))
        for member, device in enumerate(measured.devices):
            # Tensor parallelism has every member compute the last norm, of which only the portal has any use.
            assert found.seconds >= found.busy[member] - device.seconds["norm"](60) - 1e-6
            assert found.seconds >= sum(of_layers(found, member)[:-1]) / bytes_s * (1 - 1e-6)


def test_few_rows_are_shared_by_heads_and_columns() -> None:
    """A step of one row by either scheme is tensor parallelism's, and by Voltage the work of one member alone."""
    of = TINY_CAUSAL
    measured = profile(of, [1e6, 1e6, 1e6], 1e6)
    layers = layers_for(of, 3)
    step = ForwardPass(1, 20)
    tensor = predict(of, measured, plan(of, layers["tensor"], 3), step)
    for name in ("scheme-1", "scheme-2"):
        assert predict(of, measured, plan(of, layers[name], 3), step) == tensor
    alone = predict(of, measured, plan(of, Whole(0), 1), step)
    assert predict(of, measured, plan(of, layers["hidden"], 3), step).seconds == alone.seconds


def test_steps_are_the_decoders() -> None:
    """What an encoder has read is not read again: only its decoder's layers compute a step."""
    of = replace(TINY, layers=6, cross_layers=2)
    measured = profile(of, [1e6] * 2, 1e6)
    decoder = replace(TINY, layers=2, cross_layers=2)
    for name in ("tensor", "whole", "hidden"):
        layer = layers_for(of, 2)[name]
        step = predict(of, measured, plan(of, layer, 2), ForwardPass(1, 20))
        assert step.seconds == predict(decoder, measured, plan(decoder, layer, 2), ForwardPass(1, 20)).seconds


@pytest.mark.parametrize("wanted", [1, 20])
def test_a_text_is_read_and_another_begun(wanted: int) -> None:
    """One member that is the portal: the encoder's layers read all rows, of which the decoder's make keys and values
    once; as many rows as are wanted are written. The same seconds for all ways to share."""
    of = replace(TINY, layers=4, cross_layers=2)
    measured = profile(of, [1e6], 1e6, overhead_s=1e-3)
    parts = measured.devices[0].seconds

    def block(rows: int, seen: int, made: int) -> float:
        products = [("query", rows), ("key_value", made), ("output", rows)]
        attending = parts["attend"](rows, seen, of.kv_heads) + parts["norm"](rows)
        return attending + sum(parts[part](count, of.kv_heads) for part, count in products)

    def mlp(rows: int) -> float:
        return parts["norm"](rows) + sum(parts[part](rows, of.intermediate) for part in ("up", "down"))

    reading = parts["embedding"](20) + 2 * (block(20, 20, 20) + mlp(20)) + parts["norm"](20)
    layer = block(wanted, wanted, wanted) + block(wanted, 20, 20) + mlp(wanted)
    writing = parts["embedding"](wanted) + 2 * layer + parts["head"](wanted)
    for each in layers_for(of, 1).values():
        found = predict(of, measured, plan(of, each, 1), ForwardPass(20, wanted=wanted))
        assert found.seconds == pytest.approx(reading + writing)


@pytest.mark.parametrize("name", ["tensor", "whole", "scheme-1", "scheme-2", "hidden", "keys"])
def test_what_was_read_comes_to_all(name: str) -> None:
    """A portal that computes nothing sends the encoder's rows to every member, in one shot where they are little, else
    a part to each, which they gather; and nothing of the kind in steps."""
    of = replace(TINY, layers=4, cross_layers=2)
    for little in (10**6, 0):
        measured = profile(of, [1e6] * 4, 1e6, one_shot_bytes=little)
        planned = plan(of, layers_for(of, 3)[name], 3, portal="d")
        found = predict(of, measured, planned, ForwardPass(60, wanted=1))
        read = (3 if little else 1) * 60 * of.row_bytes
        assert read < found.sent[1][3] <= read + 3 * of.row_bytes, "behind it comes the first row that is written"
        step = predict(of, measured, planned, ForwardPass(1, 60))
        assert not any(step.sent[0]) and not step.sent[1][3] > 3 * of.row_bytes


def test_little_goes_at_once() -> None:
    """A step's all-reduces cost one message each, not 2 (K - 1) round the ring; and the row comes to the members at
    once, not in parts that are then gathered."""
    of = TINY_CAUSAL
    slow, rtt = 1e9, 0.1
    tensor = layers_for(of, 3)["tensor"]
    once, ring = (
        predict(
            of, profile(of, [FAST] * 3, slow, rtt_s=rtt, one_shot_bytes=most), plan(of, tensor, 3), ForwardPass(1, 5)
        ).seconds
        for most in (10**6, 0)
    )
    assert once == pytest.approx((2 * of.layers + 1) * rtt / 2, rel=1e-4)
    assert ring == pytest.approx((2 * of.layers * 4 + 1 + 2) * rtt / 2, rel=1e-4)


def test_a_tile_attends_when_it_is_its_turn() -> None:
    """So the reduce-scatter behind the attention hides behind attending, not behind the output projection alone."""
    of = layer_of(shape(2, 64, 4, 8, 10, positions=0), 2)
    measured = profile(of, [1e7] * 2, 4e5, rtt_s=0, one_shot_bytes=0)
    found = {
        overlap: predict(of, measured, plan(of, layers_for(of, 2, overlap=overlap)["scheme-2"], 2), ForwardPass(1000))
        for overlap in (True, False)
    }
    # An exchange is half of all rows' bytes; there are two a layer.
    exchange_s = 500 * of.row_bytes / 4e5
    output_s = measured.devices[0].seconds["output"](500, 2)
    hidden_s = found[False].seconds - found[True].seconds
    assert output_s < 0.4 * exchange_s
    assert 0.9 * 4 * exchange_s < hidden_s < 4 * exchange_s


def test_sending_may_slow_products_down() -> None:
    """Where products hide an exchange its bytes cost them so much each, however soon a link carries them; where they
    wait for it they have been paid for meanwhile."""
    of, count = BERT, 2
    layer, forward = layers_for(of, count)["scheme-1"], ForwardPass(200)
    for bytes_s, share in ((1e9, 1.0), (1e5, 0.0)):
        free = profile(of, [3e9] * count, bytes_s, rtt_s=0, one_shot_bytes=0)
        paying = changed(free, devices=tuple(changed(device, byte_cost_s=1e-8) for device in free.devices))
        found = [predict(of, measured, plan(of, layer, count), forward).seconds for measured in (free, paying)]
        # Two gathers and two sums in a layer, of half of the rows each; before the first all members have all rows.
        paid = 1e-8 * (4 * of.layers - 1) * 100 * of.row_bytes
        assert found[1] - found[0] == pytest.approx(share * paid, rel=0.1, abs=1e-9)


def test_a_portal_that_computes_nothing() -> None:
    """Voltage's terminal: it sends what the members begin with and gets the last rows."""
    of = TINY
    measured = profile(of, [1e6] * 3, 1e5)
    for layer in layers_for(of, 2).values():
        found = predict(of, measured, plan(of, layer, 2, portal="c"), ForwardPass(40, wanted=40))
        assert (len(found.busy) == 3 and found.busy[2] < min(found.busy[:2])) or isinstance(layer, Whole)
        assert sum(found.sent[0]) > 0 and sum(found.sent[-1]) >= 40 * of.row_bytes


@pytest.mark.parametrize("name", ["hidden", "prefix"])
def test_behind_eq_8_nothing_can_follow(name: str) -> None:
    """It leaves no keys and values."""
    of = replace(TINY_CAUSAL, rotary=False)
    layer = layers_for(of, 2)[name]
    assert isinstance(layer, ByRows)
    reordered = plan(of, replace(layer, reordered=(True, False)), 2)
    measured = profile(of, [1e6] * 2, 1e6)
    assert predict(of, measured, reordered, ForwardPass(20)).seconds > 0
    with pytest.raises(ValueError, match=r"Eq\. 8"):
        predict(of, measured, reordered, ForwardPass(1, 20))


@pytest.mark.parametrize(("rows", "cached", "wanted"), [(0, 0, 0), (3, -1, 1), (3, 0, 4), (3, 0, 0)])
def test_what_is_no_forward_is_refused(rows: int, cached: int, wanted: int) -> None:
    """Before anything is played."""
    with pytest.raises(ValueError, match="no forward"):
        ForwardPass(rows, cached, wanted)


def test_pieces_pay_where_links_bound_and_cost_where_they_do_not() -> None:
    """The first rows travel while the last are computed: no more than that is won; each call of a product costs."""

    def seconds(pieces: int, bytes_s: float, overhead_s: float) -> float:
        measured = profile(BERT, [3e9] * 4, bytes_s, overhead_s=overhead_s)
        layer = ByRows((1.0,) * 4, Whole(0), pieces=pieces)
        return predict(BERT, measured, plan(BERT, layer, 4), ForwardPass(284)).seconds

    slow = [seconds(pieces, 5e6 / 8, 0.0) for pieces in (1, 2, 4, 8)]
    assert slow == sorted(slow, reverse=True)
    mlp_s = 2 * 71 * 1024 * 4096 / 3e9
    for pieces, took in zip((2, 4, 8), slow[1:], strict=True):
        won = (slow[0] - took) / (BERT.layers - 1)
        assert 0.9 * mlp_s * (pieces - 1) / pieces <= won <= 1.1 * mlp_s * (pieces - 1) / pieces
    assert seconds(4, 1e12, 1e-3) > seconds(1, 1e12, 1e-3)


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("reordered", [False, True])
def test_each_tile_costs_something_of_its_own(prefix: bool, reordered: bool) -> None:
    """By Eq. 3 a call of a product, by Eq. 8 a pass over what was found so far; with all rows at once there is one."""
    of = replace(layer_of(GPT2, 6), causal=prefix)
    measured = profile(of, [1e9] * 3, FAST, overhead_s=1e-3)
    layer = ByRows((1.0,) * 3, Whole(2), prefix=prefix, reordered=(reordered,) * 3)
    together, by_tile = (
        predict(of, measured, plan(of, replace(layer, overlap=overlap), 3), ForwardPass(90, wanted=90)).busy[2]
        for overlap in (False, True)
    )
    each = measured.devices[2].seconds["norm"](of.heads * 30) if reordered else 1e-3
    assert by_tile - together == pytest.approx(of.layers * 2 * each, rel=0.02)
