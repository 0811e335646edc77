"""Sessions go from one life of a group into the next with the keys and values that members have, without a replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import torch
from clouds import chain_over, until
from group_plans import profile
from groups import FORMS, NAMES, PORTAL, group_here, hosted, joined_plan, member_here, plan_of, replanned, streamed
from msgspec import structs
from oracle import oracle_tokens, prompt_for
from submodel_conformance import rows
from tiny_models import built

from device_agent.group.asking.life import GroupLife
from device_agent.group.asking.reached import NOTHING_HANDED, Resumes
from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.group.formation.making import PlanMaker
from device_agent.group.formation.measures import Measures
from device_agent.group.holding.handed import HandedOver, HandedSession
from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.host import GroupHost
from device_agent.group.messages.heads import BadGroupHead
from device_agent.group.steps.worker import Worker
from device_agent.planning.plan import GroupPlan
from device_agent.planning.shape import ModelShape
from device_agent.sharing.compute import Compute
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay, DraftSettings
from drafting.choosing import Chooser
from peers.board import PeerLost
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from split_model.slices import Slice
from split_model.stack import Span, Stack

ATOL = 1e-5
WITHIN_S = 30.0
LENDS, SHARDS = "edgeformer", "tensor"
SAMPLE = (LENDS, "lent", "lent-projections", "mixed")
SHARES = {2: (3.0, 1.0), 3: (1.0, 2.0, 1.0)}


class Going:
    """One submodel, that lives in one plan after another.

    Attributes:
        group: it, once it has begun.
        kept: what members keep, by name.
        resumed: how many sessions each later life was given.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.kept = path, dict[str, KeptLayers]()
        self.group: GroupSubmodel | None = None
        self.resumed: list[int] = []
        self._resumes = NOTHING_HANDED

    def life(self, plan: GroupPlan, following: GroupPlan | None = None) -> GoingLife:
        """For a ``with``; what follows is handed sessions."""
        return GoingLife(self, plan, following)


class GoingLife:
    """One of its lives."""

    def __init__(self, of: Going, plan: GroupPlan, following: GroupPlan | None) -> None:
        self._of, self._plan, self._following = of, plan, following
        more = {"submodel": of.group, "kept": of.kept, "following": following, "resumes": of._resumes}
        self._here = group_here(of._path, plan, **more)  # type: ignore[arg-type]
        self._life: GroupLife | None = None

    def __enter__(self) -> GroupSubmodel:
        group = self._of.group = self._here.__enter__()
        self._life = group.life
        return group

    def __exit__(self, *error: object) -> None:
        self._here.__exit__(None, None, None)
        assert self._of.group is not None and self._life is not None
        self._of.group.pause()
        self._of._resumes = NOTHING_HANDED
        if self._following is not None:
            lie_so = set(self._following.members) <= set(self._plan.members)
            before = None if lie_so else joined_plan(self._plan)
            self._of._resumes = Resumes(self._life.handed, before)
            self._of.resumed.append(len(self._life.handed))


async def answered(session: object, hidden: torch.Tensor, want: int) -> torch.Tensor:
    """The outputs for the last rows."""
    found: torch.Tensor = await asyncio.wait_for(session.forward(hidden, want), WITHIN_S)  # type: ignore[attr-defined]
    return found


def asked_of(group: GroupSubmodel) -> int:
    """Rows that a life has computed."""
    assert group.life is not None
    return sum(count for count, _ in group.life.steps)


async def check(path: Path, plans: Sequence[GroupPlan]) -> None:
    """A session goes through all of these: a prompt in the first, and a long and a short turn in each that follows,
    with the outputs of one process. What a life computes are its own rows."""
    checkpoint, going = Checkpoint.open(path), Going(path)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    cache, hidden = stack.new_cache(160), rows(160, checkpoint.spec.hidden_size, 11)
    expected = stack.forward(hidden, [Span(cache, len(hidden))])
    session, end = None, 0
    for plan, following in zip(plans, [*plans[1:], None], strict=True):
        with going.life(plan, following) as group:
            session = session or group.open(len(hidden))
            began = end
            for count in (17, 1, 9):
                found = await answered(session, hidden[end : end + count], count)
                torch.testing.assert_close(found, expected[end : end + count], atol=ATOL, rtol=0)
                end += count
            assert asked_of(group) == end - began
    assert session is not None
    session.close()
    assert going.resumed == [1] * (len(plans) - 1)


def plans_of(path: Path, forms: Sequence[str], counts: Sequence[int]) -> list[GroupPlan]:
    """Of so many members each, the first ones."""
    spec = Checkpoint.open(path).spec
    return [
        plan_of(spec, form, NAMES[:count], SHARES[count], few_rows=1) for form, count in zip(forms, counts, strict=True)
    ]


@pytest.mark.parametrize(
    "form", [*SAMPLE, *(pytest.param(each, marks=pytest.mark.slow) for each in FORMS if each not in SAMPLE)]
)
async def test_who_leaves_gives_before_and_who_comes_is_given(form: str, tiny_folder: Path) -> None:
    """Heads that are lent are called home from a member that goes, and lent to it anew when it comes back; so it is
    with every other form of a layer, also where the next plan has another."""
    path = built("llama", tiny_folder)
    await check(path, plans_of(path, (form, form, form), (3, 2, 3)))
    other = LENDS if form != LENDS else SHARDS
    await check(path, plans_of(path, (form, other), (3, 2)))


@pytest.mark.parametrize("name", ["mistral-window", "gpt2", "qwen3"])
async def test_families(name: str, tiny_folder: Path) -> None:
    """Windows, learned positions, and norms of keys: what is kept is what attention reads."""
    path = built(name, tiny_folder)
    await check(path, plans_of(path, (LENDS, SHARDS, LENDS), (3, 2, 2)))


async def test_the_portal_takes_part(tiny_folder: Path) -> None:
    """As any member, whether it computes in both plans or in one."""
    path = built("llama", tiny_folder)
    spec = Checkpoint.open(path).spec
    names = [("one", PORTAL, "three"), (PORTAL, "one"), ("one",), ("one", PORTAL)]
    await check(path, [plan_of(spec, LENDS, each, few_rows=1) for each in names])


async def test_what_is_given_is_what_was_kept_bit_for_bit(tiny_folder: Path) -> None:
    """Behind a plan and back, the second time with the same outputs as without: nothing was computed anew."""
    path = built("llama", tiny_folder)
    three, two = plans_of(path, (LENDS, LENDS), (3, 2))
    hidden, outputs = rows(41, Checkpoint.open(path).spec.hidden_size, 3), []
    for plans in ([three], [three, two, three]):
        going, session = Going(path), None
        for at, plan in enumerate(plans):
            with going.life(plan, plans[at + 1] if at + 1 < len(plans) else None) as group:
                if session is None:
                    session = group.open(80)
                    await answered(session, hidden[:40], 1)
                if at == len(plans) - 1:
                    outputs.append(await answered(session, hidden[40:], 1))
    assert torch.equal(*outputs)


async def test_sessions_that_change_between_two_lives(tiny_folder: Path) -> None:
    """One is cut while there is no life, one is closed, one is a fork of the first, one rests, and one that begins only
    then is replayed; each goes on from where it is, with the outputs of one process."""
    path = built("llama", tiny_folder)
    checkpoint, going = Checkpoint.open(path), Going(path)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    hidden = rows(60, checkpoint.spec.hidden_size, 5)
    three, two = plans_of(path, (LENDS, SHARDS), (3, 2))
    with going.life(three, two) as group:
        cut, closed = group.open(60), group.open(60)
        for each in (cut, closed):
            await answered(each, hidden[:30], 1)
        fork = cut.fork(20)
        await answered(fork, hidden[40:45], 1)
        rests = group.open(60)
        await answered(rests, hidden[:25], 1)
        rests.park()
    assert going.resumed == [4] and going.group is not None
    cut.truncate(10)
    closed.close()
    begun = going.group.open(60)
    pending = begun.forward(hidden[:8], 8)
    with going.life(two) as group:
        texts = {
            cut: hidden[:10],
            fork: torch.cat((hidden[:20], hidden[40:45])),
            rests: hidden[:25],
            begun: hidden[:8],
        }
        for session, before in texts.items():
            cache = stack.new_cache(60)
            stack.forward(before, [Span(cache, len(before))])
            wanted = stack.forward(hidden[50:53], [Span(cache, 3)])
            torch.testing.assert_close(await answered(session, hidden[50:53], 3), wanted, atol=ATOL, rtol=0)
        assert (await pending).shape == (8, checkpoint.spec.hidden_size)
        assert asked_of(group) == 8 + 4 * 3
        for name, kept in going.kept.items():
            assert not kept.handed.sessions, name


async def test_who_rests_is_replayed_when_it_goes_on_and_not_before_who_waits(tiny_folder: Path) -> None:
    """Behind a life that has handed nothing over: the row of who waits is computed at once, behind its own rows alone;
    who rests goes on from its position all the same, and so does a fork of it."""
    path = built("llama", tiny_folder)
    checkpoint, going = Checkpoint.open(path), Going(path)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    hidden = rows(60, checkpoint.spec.hidden_size, 5)
    [plan] = plans_of(path, (SHARDS,), (2,))
    with going.life(plan) as group:
        resting = [group.open(60), group.open(60)]
        for each in resting:
            await answered(each, hidden[:30], 1)
            each.park()
        waits = group.open(60)
        await answered(waits, hidden[:10], 1)
    assert going.group is not None
    pending = waits.forward(hidden[50:51], 1)
    with going.life(plan) as group:
        await asyncio.wait_for(pending, WITHIN_S)
        assert asked_of(group) == 10 + 1 and [each.counted for each in resting] == [0, 0]
        fork = resting[1].fork(20)
        for session, before in ((resting[0], 30), (fork, 20)):
            cache = stack.new_cache(60)
            stack.forward(hidden[:before], [Span(cache, before)])
            wanted = stack.forward(hidden[50:53], [Span(cache, 3)])
            torch.testing.assert_close(await answered(session, hidden[50:53], 3), wanted, atol=ATOL, rtol=0)
        assert asked_of(group) == 10 + 1 + 30 + 3 + 20 + 3


@pytest.mark.parametrize(("epoch", "has"), [(8, True), (9, False)])
def test_what_no_life_went_on_with_is_forgotten(epoch: int, has: bool, tiny_folder: Path) -> None:
    """A life that was to begin behind that of epoch 7, and did not, leaves nothing to the next: the portal knows
    nothing of it, and would never end those sessions."""
    [plan] = plans_of(built("llama", tiny_folder), (SHARDS,), (2,))
    kept = HandedOver()
    kept.put(joined_plan(plan), {3: HandedSession(20, 10, [])}, 7)
    assert bool(kept.take(epoch).sessions) == has
    assert not kept.take(epoch).sessions


async def test_a_member_that_has_kept_nothing_ends_its_part(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and computes nothing for sessions that it does not have; those are replayed where another life
    follows."""
    path = built("llama", tiny_folder)
    going, hidden = Going(path), rows(12, Checkpoint.open(path).spec.hidden_size, 5)
    three, two = plans_of(path, (LENDS, SHARDS), (3, 2))
    with going.life(three, two) as group:
        session = group.open(20)
        await answered(session, hidden[:10], 1)
    going.kept["two"].handed.put(None, {})
    said: list[str] = []
    serve = Worker.serve

    def served(worker: Worker) -> None:
        try:
            serve(worker)
        except BadGroupHead as refused:
            said.append(str(refused))
            raise PeerLost(str(refused)) from refused

    monkeypatch.setattr(Worker, "serve", served)
    pending = session.forward(hidden[10:], 2)
    with going.life(two):
        await until(lambda: bool(said))
    assert f"nothing of session {session.record.session}" in said[0] and not pending.done()
    with going.life(two) as group:
        assert (await asyncio.wait_for(pending, WITHIN_S)).shape[0] == 2 and asked_of(group) == 12


def test_sessions_are_handed_over_where_that_is_faster(tiny: Path) -> None:
    """By what was measured: on fast links, not on slow ones; where nothing was measured they are. Never where nothing
    is answered, or rows may lie elsewhere."""
    checkpoint, shape = Checkpoint.open(tiny), ModelShape.of(Checkpoint.open(tiny).spec)
    spec = checkpoint.spec
    before, after = (joined_plan(plan_of(spec, LENDS, names)) for names in ((PORTAL, *NAMES[:2]), (PORTAL,)))
    for bytes_s, pays in ((1e9, True), (1e2, False), (None, True)):
        measures: Measures | None = None
        if bytes_s is not None:
            measures = Measures("", "float32")
            found = profile(shape, [1e7] * 4, bytes_s)
            names = dict(zip([each.name for each in found.devices], (PORTAL, *NAMES[:3]), strict=True))
            for device in found.devices:
                measures.device(structs.replace(device, name=names[device.name]))
            links = [structs.replace(e, source=names[e.source], target=names[e.target]) for e in found.links]
            measures.links(list(names.values()), links, (), 1, {})
        maker = PlanMaker(checkpoint, lambda *_: plan_of(spec, LENDS, NAMES), "float32", 0, 0, PORTAL, measures)
        assert maker.hands_over(before, after, [0, 50, 20]) == pays
        assert not maker.hands_over(before, after, [0]) and not maker.hands_over(before, after, [])
        kept = joined_plan(streamed(plan_of(spec, "pipeline", NAMES[:2]), spec))
        assert not maker.hands_over(kept, joined_plan(plan_of(spec, "pipeline", NAMES[:1])), [50])


@asynccontextmanager
async def three_members(path: Path) -> AsyncIterator[GroupHost]:
    """A group that lends heads, whose members are tasks of this process."""
    async with hosted(path, LENDS, NAMES[:3]) as host, AsyncExitStack() as stack:
        for name in NAMES[:3]:
            await stack.enter_async_context(member_here(path, name, host.listens.result()))
        await until(host.formed.is_set)
        yield host


async def test_a_slow_lender_is_left_and_comes_back(tiny: Path) -> None:
    """While an answer is written its lender is found slow, and later fast again: the tokens are transformers', and no
    row of the prompt, or of the answer so far, is computed again."""
    compute, prompt, tokens = Compute(), prompt_for(tiny, 40), 40
    async with three_members(tiny) as host:
        session = chain_over(tiny, 0, 0, host.submodel, compute, 64).open(len(prompt) + tokens)
        chooser, found = Chooser(SamplingParams(), list(prompt), 0, max_tokens=tokens), list[int]()
        async for chosen in Generation(session, chooser, DraftingWay.of(None, DraftSettings())).run():
            found.append(chosen.token)
            if len(found) in (tokens // 4, tokens // 2):
                slow = len(found) == tokens // 4
                await replanned(host, NAMES[2], slow=slow)
                assert [each.name for each in host.state().members if each.state == "working"] == [*NAMES[: 3 - slow]]
        session.close()
        assert host.submodel.life is not None
        begun_at = [position for _, position in host.submodel.life.steps]
        assert found == oracle_tokens(tiny, prompt, tokens)
        assert min(begun_at) >= len(prompt) + tokens // 2 - 1
    compute.stop()
