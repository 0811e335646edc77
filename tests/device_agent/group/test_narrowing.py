"""A session that leaves heads out of a group's layers is answered as by one process without them, whoever has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from groups import LENDING, NAMES, PORTAL, group_here, plan_of, submodel_for
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from submodel_conformance import rows
from tiny_models import built

from device_agent.group.asking.session import GroupSession
from device_agent.group.asking.submodel import Placing
from device_agent.group.formation.joining import Part
from device_agent.group.holding.narrowing import Narrowing
from device_agent.group.messages.heads import BadGroupHead, KeepHead, read, written
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.messages.keeping import keep_heads, kept_by
from device_agent.planning.plan import ByRows, GroupPlan, Whole
from device_agent.planning.pruning import Places
from split_model.checkpoint import Checkpoint
from split_model.pruning.block import PrunedBlock
from split_model.pruning.kept import HeadSets, KeptHeads
from split_model.pruning.stack import PrunedStacks
from split_model.slices import Slice
from split_model.spec import ModelSpec
from split_model.stack import Span, Stack
from wire.errors import SessionFailed

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo"
POSITIONS = 80
FORMS = ("tensor", "galaxy-1", "pipeline", *LENDING)
SAMPLE = ("edgeformer", "pipeline")


def sets_of(spec: ModelSpec, layers: int) -> HeadSets:
    """All heads of one layer in three, none of the next; of the third all but the first, and the last KV group's."""
    kept = (range(spec.num_heads), (), range(1, spec.num_heads - spec.heads_per_group))
    return tuple(KeptHeads(tuple(kept[at % 3]), spec.num_heads, spec.heads_per_group) for at in range(layers))


def from_behind(plan: GroupPlan, sets: HeadSets) -> Places:
    """What is left is computed by the last members, as far as they have room for it."""
    found: list[tuple[int, ...]] = []
    for layer, kept in zip(plan.layers, sets, strict=True):
        if isinstance(layer, (Whole, ByRows)) or kept.is_all:
            found.append(())
            continue
        counts, left = [0] * len(layer.groups), len(kept.groups)
        for at in reversed(range(len(counts))):
            counts[at] = min(layer.groups[at], left)
            left -= counts[at]
        found.append(tuple(counts))
    return tuple(found)


class Twin:
    """A session of a group, and one of a stack in this process that should give the same."""

    def __init__(self, session: GroupSession, stack: Stack) -> None:
        self._session, self._stack = session, stack
        self._cache, self._hidden = stack.new_cache(POSITIONS), rows(POSITIONS, stack.spec.hidden_size, 3)

    async def turns(self, *ends: int) -> None:
        """To each of these positions: further, or back."""
        for end in ends:
            begin = self._session.position
            if end < begin:
                self._session.truncate(end)
                self._cache.truncate(end)
                continue
            part = self._hidden[begin:end]
            found = await asyncio.wait_for(self._session.forward(part, min(2, end - begin)), 30)
            wanted = self._stack.forward(part, [Span(self._cache, end - begin)])
            torch.testing.assert_close(found, wanted[-2:], atol=1e-4, rtol=0)

    def fork(self) -> None:
        """Go on with a copy."""
        before, self._session = self._session, self._session.fork(self._session.position)
        before.close()


@pytest.mark.parametrize(
    "form", [*SAMPLE, *(pytest.param(each, marks=pytest.mark.slow) for each in FORMS if each not in SAMPLE)]
)
@pytest.mark.parametrize("name", ["llama-biases", pytest.param("gpt2", marks=pytest.mark.slow)])
async def test_two_with_fewer_heads_and_one_with_all(form: str, name: str, tiny_folder: Path) -> None:
    """Prompts, steps, steps back and forks of all three at once; and another life of the group goes on with them. What
    heads give on average stands for those that are left out, whoever computes the others."""
    checkpoint = Checkpoint.open(built(name, tiny_folder))
    spec = checkpoint.spec
    stack = Stack.load(checkpoint, Slice(0, spec.num_layers), torch.float32)
    sets = sets_of(spec, spec.num_layers)
    group = submodel_for(checkpoint)
    group.means = torch.randn(spec.num_layers, spec.num_heads, spec.head_dim)
    narrow = PrunedStacks(stack, checkpoint, 10**9, group.means).with_heads(sets)
    path, shares = built(name, tiny_folder), (2.0, 1.0, 1.0)
    plan = plan_of(spec, form, ("one", PORTAL, "three"), shares)
    with group_here(path, plan, submodel=group):
        assert group.life is not None
        placing = Placing(group.life, from_behind(plan, sets))
        twins = [
            Twin(group.open(POSITIONS, sets=sets), narrow),
            Twin(group.open(POSITIONS, sets=sets, placing=placing), narrow),
            Twin(group.open(POSITIONS), stack),
        ]
        await asyncio.gather(*(each.turns(17, 18, 19, 40, 41, 35) for each in twins))
        twins[0].fork()
        twins[1].fork()
        await asyncio.gather(*(each.turns(42, 43) for each in twins))
    with group_here(path, plan_of(spec, "tensor", NAMES[:2], (1.0, 1.0)), submodel=group):
        twins.append(Twin(group.open(POSITIONS, sets=sets, placing=placing), narrow))
        await asyncio.gather(*(each.turns(44, 60) for each in twins))


async def test_rows_that_are_shared_have_all_heads(tiny_folder: Path) -> None:
    """It is refused, also by the next plan of a group, and whoever has all heads goes on."""
    path = built("llama", tiny_folder)
    spec = Checkpoint.open(path).spec
    sets, hidden = sets_of(spec, spec.num_layers), rows(4, spec.hidden_size, 1)
    with group_here(path, plan_of(spec, "tensor", NAMES[:2])) as group:
        narrow, whole = group.open(POSITIONS, sets=sets), group.open(POSITIONS)
        await asyncio.wait_for(asyncio.gather(narrow.forward(hidden, 1), whole.forward(hidden, 1)), 30)
    with group_here(path, plan_of(spec, "voltage", NAMES[:2]), submodel=group):
        with pytest.raises(SessionFailed, match="no heads out"):
            await asyncio.wait_for(narrow.forward(hidden, 1), 30)
        with pytest.raises(SessionFailed, match="no heads out"):
            group.open(POSITIONS, sets=sets)
        assert (await asyncio.wait_for(whole.forward(hidden, 4), 30)).shape == hidden.shape


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.booleans(), min_size=64, max_size=64), min_size=1, max_size=100),
    st.integers(1, 64),
    st.integers(0, 9),
)
def test_heads_are_told_as_they_are(kept: Sequence[Sequence[bool]], total: int, members: int) -> None:
    """Of any number of layers, heads and members; each message is short enough."""
    sets = [KeptHeads(tuple(at for at in range(total) if each[at]), total, 1) for each in kept]
    places = tuple((0,) * (members - 1) + (len(each.heads),) if members and each.heads else () for each in sets)
    spec = Checkpoint.open(DEMO).spec
    spec = type(spec)(**{**vars(spec), "num_heads": total, "num_kv_heads": total})
    told = [
        head for head in (read(written(each)) for each in keep_heads(7, sets, places)) if isinstance(head, KeepHead)
    ]
    found = [each for head in told for each in kept_by(head, spec, len(sets))]
    assert found == [(at, each, places[at]) for at, each in enumerate(sets)]
    with pytest.raises(BadGroupHead):
        list(kept_by(told[-1], spec, len(sets) - 1))
    wrong = replace(told[-1], bits=told[-1].bits[:-1] + bytes([total + 1])) if any(places[-1:]) else None
    if wrong is not None:
        with pytest.raises(BadGroupHead, match="groups left"):
            list(kept_by(wrong, spec, len(sets)))


async def test_sessions_share_the_copies_that_they_use(tiny_folder: Path) -> None:
    """Also those that are kept no longer, where the member has memory for none but these."""
    path = built("llama", tiny_folder)
    checkpoint = Checkpoint.open(path)
    part = Part(JoinedPlan.of(plan_of(checkpoint.spec, "tensor", NAMES[:2]), "", "float32", 0, 0), checkpoint, 1)
    narrowing = Narrowing(checkpoint, 0, part.load(), part.place, 0)
    total, group = checkpoint.spec.num_heads, checkpoint.spec.heads_per_group
    sets = [KeptHeads(tuple(range(1, total)), total, group)] * 2
    first = [narrowing.narrowed(number, kept).blocks[0] for number, kept in enumerate(sets)]
    again = [narrowing.narrowed(number, kept).blocks[0] for number, kept in enumerate(sets)]
    assert all(isinstance(each, PrunedBlock) for each in first)
    assert [*map(id, again)] == [*map(id, first)]
    part.kept.close()


@pytest.mark.parametrize(("form", "places"), [("tensor", (2, 0)), ("tensor", (1, 0, 0)), ("pipeline", (1, 0))])
async def test_no_member_computes_more_than_is_planned_for_it(
    form: str, places: tuple[int, ...], tiny_folder: Path
) -> None:
    """It has no memory for that; nor are there heads of other members where one has the whole layer."""
    path = built("llama", tiny_folder)
    checkpoint = Checkpoint.open(path)
    plan = plan_of(checkpoint.spec, form, NAMES[:2])
    part = Part(JoinedPlan.of(plan, "", "float32", 0, 0), checkpoint, 1)
    narrowing = Narrowing(checkpoint, 0, part.load(), part.place, 0)
    kept = KeptHeads.of_groups([0], checkpoint.spec.num_heads, checkpoint.spec.heads_per_group)
    with pytest.raises(BadGroupHead, match="room for"):
        narrowing.narrowed(0, kept, places)
    part.kept.close()
