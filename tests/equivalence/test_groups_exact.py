"""A group of real processes gives transformers' greedy tokens in fp32, whoever computes what, and whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from checkpoints import DEMO
from clouds import chain_over, demo_adapter, greedy, until
from groups import FORMS, PORTAL, UNEVEN, Started, group_of, plan_of, replanned, streaming_planner, with_transfer
from oracle import oracle_tokens, prompt_for
from processes import slowed, stop_all_threads

from device_agent.chain.chain import Chain
from device_agent.group.formation.planned import ModePlanner
from device_agent.group.host import GroupHost
from device_agent.planning.plan import GroupPlan
from device_agent.planning.task import Work
from device_agent.sharing.compute import Compute
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay, DraftSettings
from drafting.choosing import Chooser
from peers.reader import SILENT_S
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams

TOKENS = 24
PROMPT = 70
SHORT_S = 4.0
"""Of silence; more than the two seconds after which a member says that it lives."""
GOES_ON_WITHIN_S = 15.0
"""The next token comes so soon, whatever happened to the member."""
SAMPLE = [("tensor", 2), ("voltage", 2), ("galaxy-1", 2), ("mixed", 2), ("edgeformer", 3)]

pytestmark = pytest.mark.system


def chain_of(host: GroupHost, compute: Compute, split: int = 0) -> Chain:
    """The demo model with its middle in the group."""
    return chain_over(DEMO, split, 0, host.submodel, compute, 64)


async def check(host: GroupHost, count: int = 1) -> None:
    """So many answers at once are transformers'."""
    compute = Compute()
    prompts = [prompt_for(DEMO, PROMPT, seed) for seed in range(count)]
    answers = await asyncio.gather(*(greedy(chain_of(host, compute), list(each), TOKENS) for each in prompts))
    compute.stop()
    assert answers == [oracle_tokens(DEMO, each, TOKENS) for each in prompts]


@pytest.mark.parametrize(("form", "count"), SAMPLE)
async def test_a_sample(form: str, count: int, started: Started) -> None:
    """Some ways to share the demo model, two answers at once."""
    async with group_of(DEMO, form, started.have(DEMO, count), started.port, UNEVEN[count]) as host:
        await check(host, 2)


@pytest.mark.slow
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
async def test_every_way(form: str, count: int, even: bool, started: Started) -> None:
    """All ways to share the demo model, with 1 to 4 members."""
    async with group_of(DEMO, form, started.have(DEMO, count), started.port, () if even else UNEVEN[count]) as host:
        await check(host)


@pytest.mark.parametrize(
    "form", ["voltage", *(pytest.param(each, marks=pytest.mark.slow) for each in ("galaxy-2", "edgeformer"))]
)
async def test_drafting_over_a_group(form: str, started: Started) -> None:
    """With an adapter and two layers at the portal the tokens are the same, and drafts are accepted or not."""
    compute, prompt = Compute(), prompt_for(DEMO, PROMPT)
    async with group_of(DEMO, form, started.have(DEMO, 2), started.port, first=2) as host:
        chain = chain_of(host, compute, split=2)
        tokens = await greedy(chain, list(prompt), TOKENS, demo_adapter(chain, 2))
    compute.stop()
    assert tokens == oracle_tokens(DEMO, prompt, TOKENS)


@pytest.mark.parametrize(
    ("form", "how", "silent_s"),
    [
        ("tensor", signal.SIGKILL, SILENT_S),
        pytest.param("voltage", signal.SIGKILL, SILENT_S, marks=pytest.mark.slow),
        pytest.param("tensor", signal.SIGSTOP, SHORT_S, marks=pytest.mark.slow),
        pytest.param("tensor", signal.SIGSTOP, SILENT_S, marks=pytest.mark.slow),
        pytest.param("galaxy-1", signal.SIGSTOP, SILENT_S, marks=pytest.mark.slow),
        pytest.param("pipeline", signal.SIGSTOP, SILENT_S, marks=pytest.mark.slow),
        ("edgeformer", signal.SIGKILL, SILENT_S),
        pytest.param("edgeformer", signal.SIGSTOP, SILENT_S, marks=pytest.mark.slow),
        ("streamed", signal.SIGKILL, SILENT_S),
        pytest.param("streamed", signal.SIGSTOP, SILENT_S, marks=pytest.mark.slow),
    ],
)
async def test_a_member_is_killed_or_stopped(form: str, how: signal.Signals, silent_s: float, started: Started) -> None:
    """The answer under way ends with the same tokens, by those who are left. A kill is noticed at once, silence after
    the time for it, which by default is soon enough for the answer to go on within 15 s. Started again, or going on,
    the member is taken in again."""
    compute = Compute()
    prompt = prompt_for(DEMO, PROMPT)
    more: dict[str, Any] = {"planner": streaming_planner(DEMO)} if form == "streamed" else {}
    async with group_of(DEMO, form, started.have(DEMO, 3), started.port, silent_s=silent_s, **more) as host:
        chain = chain_of(host, compute)
        session = chain.open(PROMPT + TOKENS)
        chooser = Chooser(SamplingParams(), list(prompt), 0, max_tokens=TOKENS)
        tokens: list[int] = []
        noticed_after, began, went_on_after = 0.0, 0.0, 0.0
        process = started.processes["two"].process
        assert process is not None
        async for chosen in Generation(session, chooser, DraftingWay.of(None, DraftSettings())).run():
            tokens.append(chosen.token)
            if noticed_after and not went_on_after:
                went_on_after = time.monotonic() - began
            if len(tokens) == TOKENS // 3:
                process.kill() if how is signal.SIGKILL else stop_all_threads(process.pid)
                began = time.monotonic()
                await until(lambda: not host.submodel.connected)
                noticed_after = time.monotonic() - began
        session.close()
        assert tokens == oracle_tokens(DEMO, prompt, TOKENS)
        assert 0 < noticed_after < (silent_s / 2 if how is signal.SIGKILL else silent_s + 1)
        assert went_on_after < GOES_ON_WITHIN_S, f"noticed after {noticed_after:.1f} s, went on {went_on_after:.1f}"
        process.send_signal(signal.SIGCONT)
        started.have(DEMO, 3)
        await until(lambda: [each.state for each in host.state().members] == ["working"] * 3, 60)
        await check(host)
    compute.stop()


@pytest.mark.parametrize(
    ("count", "who", "how"),
    [
        (2, "two", signal.SIGKILL),
        pytest.param(2, "one", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(3, "three", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(3, "three", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
async def test_who_has_keys_and_values_of_another_is_lost(
    count: int, who: str, how: signal.Signals, started: Started
) -> None:
    """While rows of one member lie at another, one of the two is killed or stopped: the answer under way ends with
    transformers' tokens, by those who are left, and so does one behind it."""
    spec, compute = Checkpoint.open(DEMO, None).spec, Compute()
    tokens, prompt = 40, prompt_for(DEMO, PROMPT)
    rooms = (100, *(1500 + 100 * number for number in range(1, count)))

    def planner(_: object, there: Sequence[str]) -> GroupPlan:
        return with_transfer(plan_of(spec, "interleaved", there), spec, rooms[: len(there)])

    async with group_of(DEMO, "", started.have(DEMO, count), started.port, silent_s=SHORT_S, planner=planner) as host:
        chain = chain_of(host, compute)
        session = chain.open(PROMPT + tokens)
        chooser = Chooser(SamplingParams(), list(prompt), 0, max_tokens=tokens)
        found: list[int] = []
        process = started.processes[who].process
        assert process is not None
        async for chosen in Generation(session, chooser, DraftingWay.of(None, DraftSettings())).run():
            found.append(chosen.token)
            if len(found) == tokens // 2:
                assert "keys and values are at another member too" in (started.folder / "one.log").read_text()
                process.kill() if how is signal.SIGKILL else stop_all_threads(process.pid)
                await until(lambda: not host.submodel.connected)
        session.close()
        assert found == oracle_tokens(DEMO, prompt, tokens)
        process.send_signal(signal.SIGCONT)
        await check(host)
    compute.stop()


async def test_a_lender_is_left_and_comes_back(started: Started) -> None:
    """Heads are called home from a member that is found slow, and lent to it again, while an answer is written: it ends
    with transformers' tokens, and nothing of it is computed twice."""
    compute, prompt = Compute(), prompt_for(DEMO, PROMPT)
    async with group_of(DEMO, "edgeformer", started.have(DEMO, 3), started.port) as host:
        session = chain_of(host, compute).open(PROMPT + TOKENS)
        chooser = Chooser(SamplingParams(), list(prompt), 0, max_tokens=TOKENS)
        tokens: list[int] = []
        async for chosen in Generation(session, chooser, DraftingWay.of(None, DraftSettings())).run():
            tokens.append(chosen.token)
            if len(tokens) in (TOKENS // 3, TOKENS // 2):
                await replanned(host, "two", slow=len(tokens) == TOKENS // 3)
                assert host.submodel.life is not None and not host.submodel.life.steps
        session.close()
        assert tokens == oracle_tokens(DEMO, prompt, TOKENS)
        life = host.submodel.life
        assert life is not None and min(position for _, position in life.steps) >= PROMPT
    compute.stop()


@pytest.mark.slow
async def test_files_that_are_cut_short_while_a_group_reads_them(started: Started) -> None:
    """The pass fails at who reads them, the group is planned anew and makes them anew; the answer under way has
    transformers' tokens."""
    compute = Compute()
    prompt = prompt_for(DEMO, PROMPT)
    names, planner = started.have(DEMO, 2), streaming_planner(DEMO)
    async with group_of(DEMO, "", names, started.port, planner=planner) as host:
        session = chain_of(host, compute).open(PROMPT + TOKENS)
        chooser = Chooser(SamplingParams(), list(prompt), 0, max_tokens=TOKENS)
        tokens: list[int] = []
        async for chosen in Generation(session, chooser, DraftingWay.of(None, DraftSettings())).run():
            tokens.append(chosen.token)
            if len(tokens) == TOKENS // 3:
                files = list(started.folder.glob("trilby/units/*/*.unit"))
                assert files
                for file in files:
                    os.truncate(file, file.stat().st_size // 2)
        session.close()
        assert tokens == oracle_tokens(DEMO, prompt, TOKENS)
        assert host.state().epoch > 1
    compute.stop()


@pytest.mark.slow
async def test_a_slow_member(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what was measured nobody is slow; a member that takes five times as long is planned without, and with again
    when it is as fast as before. All answers meanwhile are transformers'."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = started.have(DEMO, 3)
    planner = ModePlanner("tensor", Checkpoint.open(DEMO).spec, "float32", PORTAL, Work(PROMPT, TOKENS))
    async with group_of(DEMO, "", names, started.port, planner=planner, measured=True, expects=planner.expects) as host:
        began = time.monotonic()
        while time.monotonic() - began < 10:
            await check(host)
            assert {each.state for each in host.state().members} == {"working"}
        process = started.processes["two"].process
        assert process is not None
        with slowed(process.pid, 5):
            while [each.name for each in host.state().members if each.state == "slow"] != ["two"]:
                await check(host)
                assert time.monotonic() - began < 120
            await until(lambda: host.formed.is_set(), 60)
            await check(host)
        await until(lambda: [each.state for each in host.state().members] == ["working"] * 3, 120)
        await check(host)
