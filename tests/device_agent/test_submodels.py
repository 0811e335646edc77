"""Local layers and the cloud's are the same submodel to whoever uses them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import Cloud, chain_over, cloud_here, device_hello, greedy, local_middle, middle_of, remote_middle, until
from line_submodel import LineSubmodel
from oracle import oracle_tokens, prompt_for
from samples import sample
from streamed_units import HALVES, loading
from submodel_conformance import branching, check_submodel, rows

from cloud_server.engine.session import Answered
from device_agent.chain.local import LocalSubmodel
from device_agent.cloud.remote import RemoteSubmodel
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.hints import Pace
from split_model.offload.units import Unit
from split_model.slices import middle_slice
from split_model.stack import Span, Stack
from split_model.submodel import SubmodelSession
from split_model.tree import Tree
from wire.errors import Code, ConnectionFailed, SessionFailed


def ask(
    session: SubmodelSession, hidden: torch.Tensor, want: int, parents: Sequence[int] | None
) -> Awaitable[torch.Tensor]:
    """New positions, or nodes where there are ``parents``."""
    if parents is None:
        return session.forward(hidden, want)
    return branching(session).forward_nodes(hidden, want, parents)


async def test_local_submodel_conforms(tiny: Path) -> None:
    """Layers on this machine."""
    compute = Compute()
    await check_submodel(local_middle(tiny, 1, 1, compute), middle_of(tiny))
    compute.stop()


async def test_local_layers_that_are_read_from_the_disk_conform(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All their halves through a ring of two."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint, compute = Checkpoint.open(tiny), Compute()
    middle = middle_slice(checkpoint.spec, 1, 1)
    units = [Unit(layer, half) for layer in range(middle.first_layer, middle.last_layer) for half in HALVES]
    with loading(checkpoint, units) as loader:
        stack = Stack.load(checkpoint, middle, torch.float32, loader=loader)
        await check_submodel(LocalSubmodel(stack, compute), middle_of(tiny))
        compute.stop()


async def test_a_submodel_without_branching_conforms(tiny: Path) -> None:
    """What all owe is all that is asked of one that offers no more."""
    compute = Compute()
    await check_submodel(LineSubmodel(local_middle(tiny, 1, 1, compute)), middle_of(tiny))
    compute.stop()


async def test_remote_submodel_conforms(tiny: Path) -> None:
    """Layers in the cloud, over a websocket; afterwards nothing is left open there."""
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        await check_submodel(remote, middle_of(tiny))
        probe = remote.open(1)  # Everything sent before it has been handled once this is answered.
        await probe.forward(rows(1, 32, 0), 1)
        probe.close()
        assert set(cloud.server.engine.ledger.entries) <= {max(cloud.server.engine.ledger.entries, default=(0, 0))}


async def test_remote_submodel_conforms_with_a_narrow_window(tiny: Path) -> None:
    """With room for one chunk in flight, rows wait here for credit, and the results are the same."""
    async with (
        cloud_here(tiny, 1, 1, window_rows=40, max_rows=40) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
    ):
        await check_submodel(remote, middle_of(tiny))


async def test_a_small_step_budget_splits_chunks(tiny: Path) -> None:
    """A cloud that runs 8 rows a step gives what one step gives."""
    async with (
        cloud_here(tiny, 1, 1, step_rows=8) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
    ):
        await check_submodel(remote, middle_of(tiny))


@pytest.mark.parametrize("slow", [True, False], ids=["slow link", "fast link"])
async def test_rows_are_packed_for_a_slow_link(slow: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, and what comes out is the same; a fast link carries them as they are, and so does one that is told."""
    monkeypatch.setattr("device_agent.cloud.link.PACK_BELOW_BYTES_S", 1e12 if slow else 1.0)
    sent = []
    for may_pack in (True, False):
        hello = device_hello(tiny, 1, 1)
        async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, hello, may_pack=may_pack) as remote:
            await check_submodel(remote, middle_of(tiny))
            (link,) = remote.clouds.links
            link.pace._bandwidth._up.observe(10**6, 0.01, alone=True)
            link.pace.pace = Pace(None, 10**8, None)  # Before that, nobody knows that a link is fast.
            await check_submodel(remote, middle_of(tiny))
            before = link.stream.sent_bytes, link.stream.received_bytes  # type: ignore[union-attr]
            session = remote.open(200)
            await session.forward(rows(200, 32, 0), 200)
            after = link.stream.sent_bytes, link.stream.received_bytes  # type: ignore[union-attr]
            session.close()
            sent.append([late - early for early, late in zip(before, after, strict=True)])
    (up, down), (plain_up, plain_down) = sent
    assert plain_up >= 200 * 32 * 4 and plain_down >= 200 * 32 * 4
    if slow:
        assert up < 0.9 * plain_up and down < 0.9 * plain_down
    else:
        assert up > 0.97 * plain_up and down > 0.97 * plain_down  # Beside the rows, a measurement may be told.


async def test_an_answer_that_never_comes_has_a_deadline(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud that stays silent fails the session in time, not the connection."""
    async with (
        cloud_here(tiny, 1, 1) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1), reply_within_s=0.5) as remote,
    ):
        session = remote.open(4)
        monkeypatch.setattr(cloud.server.engine.sessions.scheduler, "add", lambda *work: None)
        with pytest.raises(SessionFailed) as failed:
            await session.forward(rows(1, 32, 0), 1)
        assert failed.value.code is Code.TIMEOUT
        assert remote.connected
        session.close()


async def test_rows_that_are_not_finite_fail_the_session(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud that sends NaN, past its own check, gives an error and no tokens."""
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        link = next(iter(cloud.server.links.values()))
        deliver = link._deliver

        def spoilt(session: int, outcome: Answered | SessionFailed) -> None:
            assert isinstance(outcome, Answered) and outcome.rows is not None
            deliver(session, replace(outcome, rows=outcome.rows * torch.nan))

        monkeypatch.setattr(link, "_deliver", spoilt)
        session = remote.open(4)
        with pytest.raises(SessionFailed) as failed:
            await session.forward(rows(1, 32, 0), 1)
        assert failed.value.code is Code.NOT_FINITE
        session.close()


@pytest.mark.system
@pytest.mark.usefixtures("forked_stages")
async def test_remote_submodel_conforms_with_stages(tiny: Path) -> None:
    """Layers in two processes: nodes are moved in both."""
    async with (
        cloud_here(tiny, 1, 1, stages=2, threads=1, page_positions=4) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
    ):
        await until(lambda: cloud.server.engine.alive, 60)
        await check_submodel(remote, middle_of(tiny))


@pytest.mark.parametrize("seed", sample(range(6), "0 1"))
async def test_losses_change_no_row(tiny: Path, seed: int) -> None:
    """Chunks, trees, choices and truncations over two cloud servers while connections are cut and sessions thrown out
    at any moment: every row is what the layers on this machine give."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    compute = Compute()
    oracle = local_middle(tiny, 1, 1, compute).open(400)
    losses = 0

    def lose(remote: RemoteSubmodel, clouds: list[Cloud]) -> None:
        nonlocal losses
        stream = rng.choice(remote.clouds.links).stream
        if stream is not None and rng.random() < 0.7:
            stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
            losses += 1
        else:
            engine = rng.choice(clouds).server.engine
            for key in list(engine.ledger.entries):
                engine.sessions.end(key, SessionFailed(Code.PREEMPTED, "its pages were needed"))
                losses += 1

    async with (
        cloud_here(tiny, 1, 1, page_positions=4) as first,
        cloud_here(tiny, 1, 1, page_positions=8, max_rows=16, window_rows=24) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
    ):
        session = remote.open(400)
        both: tuple[SubmodelSession, ...] = (session, oracle)
        answers: list[tuple[Awaitable[torch.Tensor], Awaitable[torch.Tensor]]] = []
        for _ in range(40):
            branch = rng.random() < 0.5
            hidden = torch.randn(rng.choice([1, 2, 9] if branch else [1, 1, 5, 30]), 32, generator=generator)
            want = rng.randint(0, len(hidden))
            parents = [rng.randint(-1, node - 1) for node in range(len(hidden))] if branch else None
            if session.position > 350:
                for each in both:
                    each.truncate(5)
            answers.append((ask(session, hidden, want, parents), ask(oracle, hidden, want, parents)))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0, 0.001, 0.01]))
            if rng.random() < 0.2:
                lose(remote, [first, second])
            if rng.random() < 0.5:
                await answers[-1][0]
            if rng.random() < 0.2:
                lose(remote, [first, second])
            if parents is not None:
                tree = Tree(0)
                tree.add(parents)
                keep = tree.path(rng.randint(-1, len(parents) - 1)) if rng.random() < 0.8 else None
                for each in both:
                    each.truncate(each.position) if keep is None else branching(each).keep(keep)
            elif rng.random() < 0.2:
                back = rng.randint(max(0, session.position - 10), session.position)
                for each in both:
                    each.truncate(back)
            assert session.position == oracle.position
            if rng.random() < 0.2:
                lose(remote, [first, second])
        for got, wanted in answers:
            torch.testing.assert_close(await got, await wanted, atol=1e-5, rtol=0)
        session.close()
    assert losses > 5
    compute.stop()


@pytest.mark.parametrize("smaller", [{"max_rows": 8}, {"window_rows": 8}], ids=["rows", "window"])
async def test_a_tree_goes_on_where_fewer_rows_fit(tiny: Path, smaller: dict[str, Any]) -> None:
    """A session that moves with a tree on its way to a cloud server that takes fewer rows at once has its first nodes
    answered there, at once; and so has every further tree, though the cloud server that took larger ones is back."""
    compute, fits = Compute(), 8
    oracle = local_middle(tiny, 1, 1, compute).open(100)
    parents = [-1, *(node // 2 for node in range(19))]

    async with (
        cloud_here(tiny, 1, 1) as large,
        cloud_here(tiny, 1, 1, **smaller) as small,
        remote_middle([large.url, small.url], device_hello(tiny, 1, 1)) as remote,
    ):
        session = remote.open(100)

        async def both(hidden: torch.Tensor, parents: list[int] | None, answered: int) -> None:
            waits = ask(session, hidden, len(hidden), parents)
            if parents is not None and large.server.engine.ledger.entries:
                lost.stream._transport._websocket.transport.abort()  # type: ignore[union-attr]
            cut = None if parents is None else parents[:answered]
            got, wanted = await asyncio.wait_for(waits, 10.0), await ask(oracle, hidden[:answered], answered, cut)
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)

        lost = remote.clouds.links[0]
        await both(rows(10, 32, 0), None, 10)
        url, lost.url = lost.url, "ws://127.0.0.1:9/device"
        await both(rows(20, 32, 1), parents, fits)
        for each in (session, oracle):
            branching(each).keep([0, 1, 3])
        await both(rows(3, 32, 2), None, 3)
        lost.url = url
        await until(lambda: lost.ready)
        await both(rows(20, 32, 3), parents, fits)
        for each in (session, oracle):
            each.truncate(each.position)
        await both(rows(1, 32, 4), None, 1)
        session.close()
    compute.stop()


@pytest.mark.parametrize("seed", sample(range(4), "0"))
async def test_losses_change_no_row_of_a_fork(tiny: Path, seed: int) -> None:
    """Sessions that fork at any answered row and go on while connections are cut and sessions thrown out: every row is
    what the layers on this machine give."""
    rng, generator, layers = random.Random(seed), torch.Generator().manual_seed(seed), middle_of(tiny)
    losses = forks = 0
    async with (
        cloud_here(tiny, 1, 1, page_positions=4) as first,
        cloud_here(tiny, 1, 1, page_positions=8, max_rows=16, window_rows=24) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
    ):
        lines = [(remote.open(80), torch.empty(0, 32))]
        answers: list[tuple[Awaitable[torch.Tensor], torch.Tensor]] = []
        for _ in range(60):
            number = rng.randrange(len(lines))
            session, line = lines[number]
            if session.position > 60:
                back = rng.randint(0, 40)
                session.truncate(back)
                line = line[:back]
            hidden = torch.randn(rng.choice([1, 1, 4, 20]), 32, generator=generator)
            line = torch.cat([line, hidden])
            lines[number] = session, line
            answers.append((session.forward(hidden, 1), line))
            if rng.random() < 0.5:
                await answers[-1][0]
            answered = session._log.history.length
            if rng.random() < 0.3 and answered and not session._log.waiting:
                at = rng.randint(1, answered)
                lines.append((session.fork(at), line[:at]))
                forks += 1
            if len(lines) > 5:
                await asyncio.gather(*(each for each, _ in answers))
                lines.pop(rng.randrange(len(lines)))[0].close()
            if rng.random() < 0.2:
                stream = rng.choice(remote.clouds.links).stream
                if stream is not None and rng.random() < 0.6:
                    stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
                else:
                    engine = rng.choice([first, second]).server.engine
                    for key in list(engine.ledger.entries):
                        engine.sessions.end(key, SessionFailed(Code.PREEMPTED, "its pages were needed"))
                losses += 1
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0, 0.001, 0.01]))
        for got, line in answers:
            wanted = layers.forward(line, [Span(layers.new_cache(len(line)), len(line))])[-1:]
            torch.testing.assert_close(await got, wanted, atol=1e-5, rtol=0)
        for session, _ in lines:
            session.close()
    assert losses > 4 and forks > 4


@pytest.mark.parametrize("settings", [{"window_rows": 64}, {"max_rows": 3}, {"max_model_len": 40}])
async def test_a_chain_keeps_within_what_the_cloud_allows(settings: dict[str, Any], tiny: Path) -> None:
    """Whatever limits the cloud has, prompts are cut to fit them."""
    compute = Compute()
    async with (
        cloud_here(tiny, 1, 1, **settings) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
    ):
        chain = chain_over(tiny, 1, 1, remote, compute, 128)
        prompt = prompt_for(tiny, min(100, chain.max_positions - 8))
        assert await greedy(chain, list(prompt), 8) == oracle_tokens(tiny, prompt, 8)
    compute.stop()


async def test_a_cloud_lost_a_moment_ago_is_upstream_lost(tiny: Path) -> None:
    """Opening on a stream that has just ended is the typed error of a cloud that is away."""
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        stream = remote.clouds.links[0].stream
        assert stream is not None
        stream._connection.fail(ConnectionFailed(Code.LOST, "gone"))
        with pytest.raises(SessionFailed) as failed:
            remote.open(4)
        assert failed.value.code is Code.UPSTREAM_LOST


async def test_a_cloud_that_never_answered_is_away_not_small(tiny: Path) -> None:
    """Before the first welcome nothing is known of its limits: opening says that it cannot be reached."""
    remote = RemoteSubmodel(["ws://127.0.0.1:9"], device_hello(tiny, 1, 1), 1.0)
    assert remote.max_positions > 10**9
    with pytest.raises(SessionFailed) as failed:
        remote.open(100)
    assert failed.value.code is Code.UPSTREAM_LOST
