"""Where rows are between layers, and who holds what: nothing is lost and nothing is there twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from groups import FORMS, plan_of
from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.holding.pieces import cache_bytes, pieces_of, weight_bytes
from device_agent.group.rows.layout import At, Everywhere, Parted, entry_of, layout_of, parted, senders
from device_agent.planning.plan import ByRows, Hybrid, Sharded, Whole, as_run
from split_model.checkpoint import Checkpoint
from split_model.slices import Slice, slice_bytes

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo"
SPEC = Checkpoint.open(DEMO).spec

shares = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any).map(lambda each: tuple(map(float, each)))


@given(shares, st.integers(1, 500), st.data())
def test_the_portal_gets_each_wanted_row_once(parts: Sequence[float], rows: int, data: st.DataObject) -> None:
    """Whatever the last layer's layout, the wanted rows come in order, each from somebody who has it."""
    want = data.draw(st.integers(0, rows))
    place = data.draw(st.integers(0, len(parts) - 1))
    for last in (Everywhere(), At(place), parted(rows, parts)):
        found = senders(last, rows, want, place)
        assert [row for _, each in found for row in each] == list(range(rows - want, rows))
        if isinstance(last, Parted):
            assert all(set(each) <= set(last.ranges[sender]) for sender, each in found)
        else:
            assert all(sender == place for sender, _ in found)


@given(shares, st.integers(1, 500))
def test_rows_are_handed_out_whole(parts: Sequence[float], rows: int) -> None:
    """Each row is somebody's; who has no share has none."""
    layout = parted(rows, parts)
    assert [row for each in layout.ranges for row in each] == list(range(rows))
    assert all(not count for count, share in zip(layout.counts, parts, strict=True) if not share)


def test_few_rows_are_run_as_steps() -> None:
    """Few rows are computed as the plan says for steps, many as for prompts; after a prefix only one goes on."""
    step = Sharded((1, 1), (2, 2))
    hybrid, rows = Hybrid((1, 1), (2, 2), (1.0, 1.0), few_rows=32), ByRows((1.0, 1.0), step, few_rows=32)
    prefix = ByRows((1.0, 1.0), Whole(1), prefix=True)
    for layer in (hybrid, rows):
        assert as_run(layer, 32, 5) == step and as_run(layer, 33, 5) is layer
    assert as_run(prefix, 100, 0) is prefix and as_run(prefix, 100, 1) == Whole(1)
    assert layout_of(step, 9) == Everywhere() and layout_of(Whole(1), 9) == At(1)
    assert layout_of(rows, 9) == Parted((range(4), range(4, 9)))


def test_many_rows_for_all_are_shared_on_their_way() -> None:
    """The portal sends what is little to everyone, and of what is more a part to each."""
    assert entry_of(Everywhere(), 40, 2, little=True) == Everywhere()
    assert entry_of(Everywhere(), 40, 2, little=False) == Parted((range(20), range(20, 40)))
    assert entry_of(At(1), 40, 2, little=False) == At(1)


@given(st.sampled_from(sorted(FORMS)), shares)
def test_steps_use_each_head_and_column_once(form: str, parts: Sequence[float]) -> None:
    """The members' own pieces are the layer; all pieces of a member are the layer too where it has all of it."""
    plan = plan_of(SPEC, form, [str(each) for each in range(len(parts))], parts)
    for layer in plan.layers:
        held = [pieces_of(layer, place, SPEC) for place in range(len(parts))]
        if isinstance(layer, ByRows):
            for pieces in held:
                assert [each for piece in pieces for each in piece.groups] == list(range(SPEC.num_kv_heads))
                assert [each for piece in pieces for each in piece.columns] == list(range(SPEC.intermediate_size))
        if isinstance(layer, (Sharded, Hybrid)) or (isinstance(layer, ByRows) and isinstance(layer.step, Sharded)):
            own = [piece for pieces in held for piece in pieces if piece.own]
            assert [each for piece in own for each in piece.groups] == list(range(SPEC.num_kv_heads))
            assert [each for piece in own for each in piece.columns] == list(range(SPEC.intermediate_size))


def test_bytes_are_counted_as_they_are_held() -> None:
    """A pipeline of one holds the layers' bytes; keys and values are counted by heads and positions."""
    layers = (Whole(0),) * SPEC.num_layers
    assert weight_bytes(layers, 0, 0, SPEC, "float32") == slice_bytes(SPEC, Slice(0, SPEC.num_layers), "float32")
    kv = 2 * SPEC.num_layers * SPEC.num_kv_heads * SPEC.head_dim * 10 * 4
    assert cache_bytes(layers, 0, SPEC, 10, 4) == kv and cache_bytes(layers, 1, SPEC, 10, 4) == 0
