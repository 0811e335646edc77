"""Members whose oldest keys and values lie at another: tokens stay transformers', nothing is lost or kept too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import chain_over, until
from groups import PORTAL, group_here, hosted, member_here, plan_of, with_transfer
from oracle import oracle_tokens, prompt_for
from submodel_conformance import check_sessions, check_submodel
from tiny_models import build_tiny, built

from device_agent.group.formation import joining
from device_agent.group.forms import pipelined
from device_agent.group.messages.heads import GroupHead
from device_agent.group.relief import moving
from device_agent.group.relief.apart import run_attention_apart
from device_agent.group.relief.lodging import Lodging
from device_agent.group.relief.moving import Moving
from device_agent.group.steps.worker import Worker
from device_agent.planning import moves
from device_agent.planning.moves import LinkPace
from device_agent.planning.plan import GroupPlan
from device_agent.planning.transfers import Room
from device_agent.sharing.compute import Compute
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay, DraftSettings
from drafting.choosing import Chooser
from peers.inbox import EARLY_BYTES
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from split_model.slices import Slice
from split_model.stack import Span, Stack

PAIR, THREE = ("one", PORTAL), ("one", PORTAL, "three")
PROMPT, TOKENS = 20, 230


@dataclass
class Ends:
    """Both ends of the transfer of a group whose members are threads here."""

    moving: list[Moving] = field(default_factory=list)
    lodging: list[Lodging] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """That lie at the other member."""
        return self.lodging[0].rows


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repacked for a test goes with it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """Those of the group that a test makes."""
    found, ends_of, start = Ends(), moving.ends_of, Moving._start

    def recorded(*args: Any) -> tuple[Moving | None, Lodging | None]:
        mine, others = ends_of(*args)
        found.moving += [mine] if mine else []
        found.lodging += [others] if others else []
        return mine, others

    def started(self: Moving, key: Any, state: Any, copy: Any) -> None:
        found.ways.append(copy.way)
        start(self, key, state, copy)

    monkeypatch.setattr(joining, "ends_of", recorded)
    monkeypatch.setattr(Moving, "_start", started)
    yield found
    assert found.moving and found.lodging
    for each in found.lodging:
        each._thread.join(30)
        assert not each._thread.is_alive() and not each.rows and not each._held


@pytest.mark.parametrize(
    ("names", "tokens", "form"),
    [
        (PAIR, (160, 900), "interleaved"),
        (PAIR, (900, 160), "pipeline"),
        (THREE, (900, 400, 160), "pipeline"),
    ],
)
async def test_tokens_are_transformers_while_rows_go_and_come_back(
    names: Sequence[str], tokens: Sequence[int], form: str, tiny: Path, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go before the member would stream more, and it streams nothing; they come back at once when the link becomes
    slow, and go again when it is fast; they are gone when the session closes."""
    slow = [False]
    monkeypatch.setattr(LinkPace, "seconds", lambda self, size: 1e12 if slow[0] else 1e-6)
    spec, compute, prompt = Checkpoint.open(tiny).spec, Compute(), prompt_for(tiny, PROMPT)
    phases: list[Callable[[], bool]] = [lambda: ends.rows > 50, lambda: not ends.rows, lambda: ends.rows > 50]
    with group_here(tiny, with_transfer(plan_of(spec, form, names), spec, tokens)) as group:
        session = chain_over(tiny, 0, 0, group, compute, 256).open(PROMPT + TOKENS)
        chooser, found = Chooser(SamplingParams(), list(prompt), 0, max_tokens=TOKENS), []
        async for chosen in Generation(session, chooser, DraftingWay.of(None, DraftSettings())).run():
            found.append(chosen.token)
            if phases and phases[0]():
                phases.pop(0)
                slow[0] = not slow[0]
        assert found == oracle_tokens(tiny, prompt, TOKENS)
        assert not phases, f"{len(phases)} did not come true: {ends.ways}"
        session.close()
        await until(lambda: not ends.rows)
        assert not ends.moving[0].there
    compute.stop()


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows are enough to go, and go at once."""
    monkeypatch.setattr(Room, "until", lambda self, tokens: 0)
    monkeypatch.setattr(moves, "LEAST_ROWS", 1)


@pytest.mark.parametrize(
    ("names", "tokens", "fetches"), [(PAIR, (2000, 3000), True), (THREE, (2000, 2500, 3000), False)]
)
@pytest.mark.usefixtures("everything")
async def test_a_group_whose_rows_move_conforms(
    names: Sequence[str], tokens: Sequence[int], fetches: bool, tiny: Path, ends: Ends
) -> None:
    """Truncations into rows that are away, forks of sessions that have such, parked ones: as any other submodel."""
    checkpoint = Checkpoint.open(tiny)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    plan = with_transfer(plan_of(checkpoint.spec, "interleaved", names), checkpoint.spec, tokens, fetches)
    with group_here(tiny, plan) as group:
        await check_submodel(group, stack)
    assert {"out", "back"} == set(ends.ways)


@pytest.mark.parametrize("name", ["mistral-window", "gpt2", "opt-post-norm"])
@pytest.mark.usefixtures("everything")
async def test_several_sessions_have_rows_away(name: str, tiny_folder: Path, ends: Ends) -> None:
    """At once, in micro-batches, with drafts; also where rows see no further than a window."""
    path = built(name, tiny_folder)
    checkpoint = Checkpoint.open(path)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    plan = plan_of(checkpoint.spec, "interleaved", PAIR, micro_batches=2)
    with group_here(path, with_transfer(plan, checkpoint.spec, (3000, 2000))) as group:
        await check_sessions(group, stack)
    assert ends.ways.count("out") > 5


@pytest.mark.usefixtures("everything")
async def test_rows_that_come_early_do_not_hold_up_answers(
    tmp_path: Path, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt whose next stage's rows are more than a link keeps unasked: the other member, which is faster, has sent
    them before it answers what this one asks in the stage before, and all is computed all the same."""
    path = build_tiny("llama", tmp_path / "wide", hidden_size=256, max_position_embeddings=8192)
    checkpoint = Checkpoint.open(path)
    spec = checkpoint.spec

    def slowly(*args: Any) -> torch.Tensor:
        time.sleep(0.1)
        return run_attention_apart(*args)

    monkeypatch.setattr(pipelined, "run_attention_apart", slowly)
    stack = Stack.load(checkpoint, Slice(0, spec.num_layers), torch.float32)
    hidden = 0.3 * torch.randn((64 + 2000, spec.hidden_size), generator=torch.Generator().manual_seed(1))
    assert 1000 * spec.hidden_size * 4 > 2 * EARLY_BYTES
    with group_here(path, with_transfer(plan_of(spec, "interleaved", (PORTAL, "one")), spec, (6000, 5000))) as group:
        session = group.open(len(hidden))
        for begin in range(0, 64, 8):
            await session.forward(hidden[begin : begin + 8], 1)
        await until(lambda: ends.rows > 0)
        found = await asyncio.wait_for(session.forward(hidden[64:], 1), 30)
    expected = stack.forward(hidden, [Span(stack.new_cache(len(hidden)), len(hidden))])[-1:]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


async def test_memory_stays_within_what_is_counted(tiny: Path, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """At both members, in each state of one long and one short session: weights, own keys and values and those of the
    other, and one layer's of them more. The other takes its room back where it needs it: rows go home before."""
    most: dict[int, float] = {}
    budgets: dict[int, int] = {}
    spec = Checkpoint.open(tiny).spec
    plan = with_transfer(plan_of(spec, "interleaved", PAIR), spec, (100, 250))
    plan = replace(plan, ring_bytes=(plan.ring_bytes[0], 0))
    do = Worker.do

    def measured(self: Worker, head: GroupHead, given: torch.Tensor | None = None) -> torch.Tensor | None:
        output = do(self, head, given)
        relieving = self._relieving
        assert relieving is not None
        caches = [session.nbytes for session in self._sessions.values()]
        if relieving._lodging is not None:
            caches += [cache.nbytes for cache in list(relieving._lodging._held.values())]
        place = relieving._of[1]
        taken = relieving._kept.loaded_bytes("", "float32") + sum(caches) + max(caches, default=0) // 2
        budget = budgets.setdefault(place, relieving._kept.loaded_bytes("", "float32") + plan.cache_bytes[place])
        most[place] = max(most.get(place, 0), taken / budget)
        return output

    monkeypatch.setattr(Worker, "do", measured)
    compute, prompt = Compute(), prompt_for(tiny, PROMPT)
    with group_here(tiny, plan) as group:
        chain = chain_over(tiny, 0, 0, group, compute, 256)
        long, peak = chain.open(PROMPT + 120), 0
        chooser = Chooser(SamplingParams(), list(prompt), 0, max_tokens=120)
        tokens: list[int] = []
        others: list[int] = []
        async for chosen in Generation(long, chooser, DraftingWay.of(None, DraftSettings())).run():
            tokens.append(chosen.token)
            peak = max(peak, ends.rows)
            if ends.rows > 60 and not others:
                short = chain.open(100)
                other = Chooser(SamplingParams(), list(prompt), 0, max_tokens=5)
                others = [
                    each.token async for each in Generation(short, other, DraftingWay.of(None, DraftSettings())).run()
                ]
                short.close()
        long.close()
    compute.stop()
    assert tokens == oracle_tokens(tiny, prompt, 120) and others == oracle_tokens(tiny, prompt, 5)
    assert peak and "back" in ends.ways and set(most) == {0, 1}
    assert max(most.values()) <= 1, most


async def test_a_group_says_where_keys_and_values_may_lie(tiny: Path) -> None:
    """In one line of what it says of the whole."""
    spec = Checkpoint.open(tiny).spec

    def planner(_: object, names: Sequence[str]) -> GroupPlan:
        return with_transfer(plan_of(spec, "interleaved", names), spec, (100, 250)[: len(names)])

    async with (
        hosted(tiny, "", ("one", PORTAL), planner=planner) as host,
        member_here(tiny, "one", host.listens.result()),
    ):
        await until(host.formed.is_set)
        assert host.state().why.endswith(f"streamed: one's at {PORTAL}")
