"""A session that leaves heads out of a group's layers is answered as by one process without them, whoever has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from groups import LENDING, NAMES, PORTAL, group_here, plan_of
from hypothesis import given, settings
from hypothesis import strategies as st
from submodel_conformance import rows
from tiny_models import built

from device_agent.group.asking.session import GroupSession
from device_agent.group.messages.heads import BadGroupHead, KeepHead, read, written
from device_agent.group.messages.keeping import keep_heads, kept_by
from split_model.checkpoint import Checkpoint
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
    """All heads of one layer in three, none of the next, all but the first of the third."""
    kept = (range(spec.num_heads), (), range(1, spec.num_heads))
    return tuple(KeptHeads(tuple(kept[at % 3]), spec.num_heads, spec.heads_per_group) for at in range(layers))


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
    """Prompts, steps, steps back and forks of all three at once; and another life of the group goes on with them."""
    checkpoint = Checkpoint.open(built(name, tiny_folder))
    spec = checkpoint.spec
    stack = Stack.load(checkpoint, Slice(0, spec.num_layers), torch.float32)
    sets = sets_of(spec, spec.num_layers)
    narrow = PrunedStacks(stack, checkpoint, 10**9).with_heads(sets)
    path, shares = built(name, tiny_folder), (2.0, 1.0, 1.0)
    with group_here(path, plan_of(spec, form, ("one", PORTAL, "three"), shares)) as group:
        of = [
            (group.open(POSITIONS, sets=each), stack) for each, stack in ((sets, narrow), (sets, narrow), ((), stack))
        ]
        twins = [Twin(session, each) for session, each in of]
        await asyncio.gather(*(each.turns(17, 18, 19, 40, 41, 35) for each in twins))
        twins[0].fork()
        await asyncio.gather(*(each.turns(42, 43) for each in twins))
    with group_here(path, plan_of(spec, "tensor", NAMES[:2], (1.0, 1.0)), submodel=group):
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
@given(st.lists(st.lists(st.booleans(), min_size=64, max_size=64), min_size=1, max_size=100), st.integers(1, 64))
def test_heads_are_told_as_they_are(kept: Sequence[Sequence[bool]], total: int) -> None:
    """Of any number of layers and heads; each message is short enough."""
    sets = [KeptHeads(tuple(at for at in range(total) if each[at]), total, 1) for each in kept]
    spec = Checkpoint.open(DEMO).spec
    spec = type(spec)(**{**vars(spec), "num_heads": total, "num_kv_heads": total})
    told = [head for head in (read(written(each)) for each in keep_heads(7, sets)) if isinstance(head, KeepHead)]
    assert dict(found for head in told for found in kept_by(head, spec, len(sets))) == dict(enumerate(sets))
    with pytest.raises(BadGroupHead):
        list(kept_by(told[-1], spec, len(sets) - 1))
