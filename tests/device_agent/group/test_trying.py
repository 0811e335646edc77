"""Groups that try how their plan is best run, over real members."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from group_reads import read_of
from groups import NAMES, PORTAL, group_here, hosted, member_here, plan_of
from submodel_conformance import rows
from tiny_models import built

from device_agent.group.asking.asks import GroupAsk
from device_agent.group.formation.trying import measured, settle
from device_agent.group.messages.heads import MannerHead
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.trials import RUNS, Manner, Trial
from split_model.checkpoint import Checkpoint
from split_model.slices import Slice
from split_model.stack import Span, Stack

MANNERS = (Manner(), Manner(overlap=False), Manner(by_columns=True), Manner(few=True))

SHARED = Manner(shares=(100, 40, 1))
"""Of three members."""


@pytest.fixture(autouse=True)
def kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a trial is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("form", ["galaxy-2", "voltage-pieces", "mixed"])
async def test_outputs_are_the_same_in_every_manner(form: str, tiny_folder: Path) -> None:
    """Transformers' ones, also behind a trial of one layer only, and the portal computes too."""
    read = read_of("bert", tiny_folder)
    with group_here(read.path, plan_of(read.spec, form, ("one", PORTAL, "two"), (2, 1, 1))) as group:
        assert group.life is not None
        manners = (*MANNERS, SHARED)
        trial = Trial(manners, tuple(map(str, manners)), len(read.hidden), 1)
        seconds = await asyncio.wait_for(measured(group.life, trial, read.hidden), 60)
        assert set(seconds) == set(manners)
        assert all(1 <= len(runs) <= RUNS and min(runs) > 0 for runs in seconds.values())
        for each in manners:
            group.ask(GroupAsk(MannerHead(each)))
            read.check(await asyncio.wait_for(group.read(read.hidden, read.lengths), 30))


@pytest.mark.parametrize("form", ["voltage-prefix", "voltage-prefix-keys-values", "voltage-reordered"])
async def test_sessions_go_on_in_other_shares(form: str, tiny_folder: Path) -> None:
    """Where each member had only the rows before its own, all have all: prompts, steps and turns are one process's."""
    path = built("gpt2" if form == "voltage-reordered" else "llama", tiny_folder)
    checkpoint = Checkpoint.open(path)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    cache, hidden = stack.new_cache(60), rows(60, stack.spec.hidden_size, 7)
    with group_here(path, plan_of(stack.spec, form, NAMES[:3], (1, 2, 1))) as group:
        group.ask(GroupAsk(MannerHead(SHARED)))
        session = group.open(60)
        for begin, end in ((0, 17), (17, 18), (18, 40), (40, 41), (41, 60)):
            got = await asyncio.wait_for(session.forward(hidden[begin:end], end - begin), 30)
            expected = stack.forward(hidden[begin:end], [Span(cache, end - begin)])
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
        session.close()


async def test_a_plan_is_tried_once(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next life of the same plan takes the manner that was found; another plan is tried for itself."""
    read = read_of("bert", tiny_folder)
    tried = 0

    async def counted(*of: object) -> object:
        nonlocal tried
        tried += 1
        return {manner: [float(manner.overlap is None)] for manner in MANNERS}

    monkeypatch.setattr("device_agent.group.formation.trying.measured", counted)
    trial = Trial(MANNERS, ("as planned", "b", "c", "d"), 8, 1)
    for form, wanted in (("galaxy-2", 1), ("galaxy-2", 1), ("voltage", 2)):
        plan = plan_of(read.spec, form, NAMES[:2])
        with group_here(read.path, plan) as group:
            assert group.life is not None
            joined = JoinedPlan.of(plan, "", "float32", 0, 0)
            found = await asyncio.wait_for(settle(group.life, joined, trial, group.hidden_size), 30)
            read.check(await asyncio.wait_for(group.read(read.hidden, read.lengths), 30))
        assert tried == wanted and found.manner == Manner(overlap=False)
        assert str(found) == "tried with 8 rows: as planned 1.00 s, b 0.0 ms (taken), c 1.00 s, d 1.00 s"


async def test_a_group_says_what_it_has_tried(tiny_folder: Path) -> None:
    """It forms, says which manner it took and what the others would have taken, and answers rightly."""
    read = read_of("bert", tiny_folder)
    trial = Trial(MANNERS, ("as planned", "b", "c", "d"), 8, 1)
    async with hosted(read.path, "galaxy-1", 2, computes=False, trial=lambda: trial) as host:
        port = await host.listens
        async with member_here(read.path, "one", port), member_here(read.path, "two", port):
            await asyncio.wait_for(host.formed.wait(), 60)
            why = host.state().why
            assert why.startswith("tried with 8 rows: as planned ") and why.count("(taken)") == 1
            read.check(await asyncio.wait_for(host.submodel.read(read.hidden, read.lengths), 30))
