"""What members are told, and when they refuse: before a weight is read, and saying why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from groups import FORMS, PORTAL, plan_of, streamed
from tiny_models import built

from device_agent.group.formation.joining import Part, Refused
from device_agent.group.holding.pieces import weight_bytes
from device_agent.group.holding.streaming import Streaming
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.plan import ByRows, Whole
from split_model.checkpoint import Checkpoint
from split_model.hub import identity
from split_model.offload.units import Unit

NAMES = ("one", "two", "three")


@pytest.fixture
def checkpoint(tiny_folder: Path) -> Checkpoint:
    """A tiny Llama."""
    return Checkpoint.open(built("llama", tiny_folder))


@pytest.mark.parametrize("form", FORMS)
def test_plans_come_out_as_they_went_in(form: str, checkpoint: Checkpoint) -> None:
    """Layers, ranks, names, and what is sent in one shot; the portal has rank 0 wherever it stands."""
    plan = plan_of(checkpoint.spec, form, ("one", PORTAL, "three"), (1.0, 2.0, 3.0))
    plan = replace(plan, one_shot_bytes=1234)
    joined = JoinedPlan.read(JoinedPlan.of(plan, "digest", "float32", 0, 100).written())
    assert joined.layers(checkpoint.spec) == plan.layers
    assert joined.ranks == (1, 0, 2) and joined.seats == {1: "one", 2: "three"}
    assert joined.one_shot_bytes == 1234


def test_lies_in_a_plan_are_refused(checkpoint: Checkpoint) -> None:
    """Bytes that are no plan, fields that there are not, layers past the model, members without a rank of their own."""
    good = JoinedPlan.of(plan_of(checkpoint.spec, "mixed", NAMES), "", "float32", 0, 0)
    for data in (b"", b"\x00", good.written()[:-3], msgspec.msgpack.encode({"digest": ""})):
        with pytest.raises(ValueError):
            JoinedPlan.read(data)
    fields = msgspec.to_builtins(good)
    lies: list[dict[str, object]] = [
        {"dtype": "int8"},
        {"more": 1},
        {"one_shot_bytes": -1},
        {"first_layer": -1},
        {"alike": [[1, [9, 0]]]},
    ]
    for change in lies:
        with pytest.raises(ValueError):
            JoinedPlan.read(msgspec.msgpack.encode({**fields, **change}))
    others: list[dict[str, Any]] = [
        {"first_layer": 1},
        {"ranks": (1, 1, 2)},
        {"ranks": (1, 2, 9)},
        {"names": ("a", "b")},
    ]
    for change in others:
        with pytest.raises(ValueError):
            msgspec.structs.replace(good, **change).layers(checkpoint.spec)


def test_eq_8_is_for_models_whose_keys_are_plain(checkpoint: Checkpoint) -> None:
    """An order that makes no keys is refused where keys are turned."""
    layer = ByRows((1.0, 1.0, 1.0), Whole(0), reordered=(True, False, False))
    plan = replace(plan_of(checkpoint.spec, "voltage", NAMES), layers=(layer,) * 4)
    with pytest.raises(ValueError, match=r"Eq\. 8"):
        JoinedPlan.of(plan, "", "float32", 0, 0).layers(checkpoint.spec)


@pytest.mark.parametrize("form", ["tensor", "pipeline", "voltage"])
def test_who_keeps_no_keys_and_values_wants_no_memory_for_them(form: str, tiny_folder: Path) -> None:
    """A model that reads whole texts: a member that has memory for the weights of its part takes it, as it is planned
    to; with a byte less it refuses."""
    checkpoint = Checkpoint.open(built("bert", tiny_folder), None)
    plan = plan_of(checkpoint.spec, form, NAMES)
    joined = JoinedPlan.of(plan, "", "float32", 0, 10_000)
    weights = weight_bytes(plan.layers, 0, 1, checkpoint.spec, "float32")
    Part(joined, checkpoint, 2, weights)
    with pytest.raises(Refused, match="are needed for its part"):
        Part(joined, checkpoint, 2, weights - 1)


def test_refusals_say_why(checkpoint: Checkpoint) -> None:
    """Other weights, no place, a plan for another model, too little memory: nothing has been loaded."""
    plan = JoinedPlan.of(plan_of(checkpoint.spec, "tensor", NAMES), identity(checkpoint), "float32", 0, 100)
    part = Part(plan, checkpoint, 1, 10**6)
    needed = sum(each.loaded_bytes for each in part.load())
    for change, rank, budget, why in (
        ({"digest": "another"}, 1, 0, "same revision"),
        ({}, 4, 0, "no part for rank 4"),
        ({"first_layer": 2}, 1, 0, "not for this model"),
        ({}, 1, needed, r"0\.1 MB are needed"),
    ):
        with pytest.raises(Refused, match=why):
            Part(msgspec.structs.replace(plan, **change), checkpoint, rank, budget)


def test_what_is_streamed_travels_and_is_checked(checkpoint: Checkpoint) -> None:
    """Units, rings, micro-batches and whether they are read ahead come out as they went in; no member streams what it
    does not have, twice, out of order, or into nothing, and no plan has more of it than a plan can have."""
    spec = checkpoint.spec
    plan = streamed(plan_of(spec, "interleaved", ("one", PORTAL), micro_batches=3), spec, share=2, ring=2)
    plan = replace(plan, prefetch=False)
    joined = JoinedPlan.read(JoinedPlan.of(plan, "", "float32", 0, 0).written())
    found = joined.plan(spec)
    assert (found.streamed, found.ring_bytes, found.micro_batches) == (plan.streamed, plan.ring_bytes, 3)
    assert not found.prefetch and not Streaming.of(found, 0, 0, spec, "float32").ahead
    lies: list[dict[str, Any]] = [
        {"streamed": joined.streamed[:1]},
        {"streamed": joined.streamed[::-1]},
        {"streamed": ((2 * spec.num_layers,), ())},
        {"streamed": (joined.streamed[0][::-1], ())},
        {"streamed": (joined.streamed[0] + joined.streamed[0][-1:], ())},
        {"ring_bytes": (0, 0)},
        {"ring_bytes": ()},
    ]
    for change in lies:
        with pytest.raises(ValueError):
            msgspec.structs.replace(joined, **change).plan(spec)
    fields = msgspec.to_builtins(joined)
    for change in ({"streamed": [[-1]]}, {"streamed": [list(range(9000))]}, {"ring_bytes": [-1]}, {"micro_batches": 0}):
        with pytest.raises(ValueError):
            JoinedPlan.read(msgspec.msgpack.encode({**fields, **change}))


def test_what_is_streamed_needs_no_memory_but_the_ring(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has room for the ring and what stays takes part, and holds no more than was said; a byte less is refused
    before anything is read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = checkpoint.spec
    whole = JoinedPlan.of(plan_of(spec, "pipeline", ("one",)), "", "float32", 0, 10)
    planned = streamed(plan_of(spec, "pipeline", ("one",)), spec)
    joined = JoinedPlan.of(planned, "", "float32", 0, 10)
    caches = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 10 * 4
    norms = 2 * spec.num_layers * spec.hidden_size * 4
    needed = caches + norms + planned.ring_bytes[0]
    with pytest.raises(Refused, match="MB are needed"):
        Part(joined, checkpoint, 1, needed - 1)
    with pytest.raises(Refused, match="MB are needed"):
        Part(whole, checkpoint, 1, needed)
    assert not list(tmp_path.iterdir())
    part = Part(joined, checkpoint, 1, needed)
    held = part.load()
    assert sum(each.loaded_bytes for each in held) == norms
    assert part.kept.loaded_bytes("", "float32") == norms + planned.ring_bytes[0]
    part.kept.close()


@pytest.mark.parametrize("form", ["voltage", "galaxy-2"])
def test_what_is_held_in_pieces_is_not_streamed(form: str, checkpoint: Checkpoint) -> None:
    """It is refused by name."""
    plan = replace(
        plan_of(checkpoint.spec, form, NAMES), streamed=((Unit(0, "mlp"),), (), ()), ring_bytes=(10**6, 0, 0)
    )
    with pytest.raises(Refused, match="pieces"):
        Part(JoinedPlan.of(plan, "", "float32", 0, 0), checkpoint, 1)
