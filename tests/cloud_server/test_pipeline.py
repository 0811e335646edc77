"""The pipeline of stages: the same outputs as one process, steps that overlap, stages that die and come back."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from processes import stop_all_threads
from stage_pipelines import (
    FIRST,
    HIDDEN,
    LAST,
    NOTICED_WITHIN_S,
    PAGE_POSITIONS,
    PAGES,
    GatedStep,
    conversations,
    layers_of,
    like,
    one_row,
    open_sockets,
    pipeline_of,
    run_all,
    runs,
    started,
    until,
)

from cloud_server.cache.moving import NOWHERE
from cloud_server.cache.span import PagedSpan
from cloud_server.stages.layer_step import Ran
from cloud_server.stages.link import Link, Place
from cloud_server.stages.pipeline import PipelineRunner
from cloud_server.stages.plan import stage_layers
from cloud_server.stages.runner import LocalRunner, StageLost
from cloud_server.stages.stage import relay
from cloud_server.stages.step_wire import StepHead
from peers.board import Board


@pytest.mark.system
@pytest.mark.parametrize(
    ("stages", "dtype"), [(2, torch.bfloat16), pytest.param(4, torch.float32, marks=pytest.mark.slow)]
)
async def test_any_number_of_stages_gives_the_same_outputs(windowed: Path, stages: int, dtype: torch.dtype) -> None:
    """Bit for bit those of one process, over ragged steps with truncations and with pages used again."""
    work = conversations(60, dtype)
    local = LocalRunner(layers_of(windowed, range(FIRST, LAST), dtype))
    async with started(local):
        wanted = await run_all(local, work)
    pipeline = pipeline_of(windowed, stages, dtype)
    assert pipeline.depth == stages
    async with started(pipeline):
        found = await run_all(pipeline, work)
    for ran, expected in zip(found, wanted, strict=True):
        assert torch.equal(ran.outputs, expected.outputs)
        assert list(ran.finite) == [True] * len(expected.finite)
        assert ran.seconds > 0


@pytest.mark.system
@pytest.mark.usefixtures("forked_stages")
async def test_steps_overlap(windowed: Path) -> None:
    """The first stage computes the next step while the second has not done the last one, and the other way round."""
    layers = stage_layers(FIRST, LAST, 2)
    step = GatedStep(layers_of(windowed, layers[0]))
    pipeline = PipelineRunner(step, layers, like(windowed))
    async with started(pipeline):
        stop_all_threads(pipeline.pids[0])
        both = [asyncio.create_task(pipeline.run(*one_row(page))) for page in (0, 1)]
        await asyncio.to_thread(until, lambda: step.done == 2)
        assert not any(task.done() for task in both)
        os.kill(pipeline.pids[0], signal.SIGCONT)
        await asyncio.gather(*both)

        first = asyncio.create_task(pipeline.run(*one_row(2)))
        await asyncio.to_thread(until, lambda: step.done == 3)
        step.gate.clear()
        second = asyncio.create_task(pipeline.run(*one_row(3)))
        await asyncio.to_thread(until, lambda: step.begun == 4)
        await asyncio.wait_for(first, 20)
        assert step.done == 3 and not second.done()
        step.gate.set()
        await second


@pytest.mark.system
@pytest.mark.usefixtures("forked_stages")
async def test_a_killed_stage_ends_its_steps_and_comes_back(windowed: Path) -> None:
    """Its steps end in StageLost at once, no later one is taken; after start all is as it was and no socket is left."""
    work = conversations(20)
    local = LocalRunner(layers_of(windowed, range(FIRST, LAST)))
    async with started(local):
        wanted = await run_all(local, work)
    pipeline = pipeline_of(windowed, 3)
    with pytest.raises(StageLost):
        await pipeline.run(*one_row(0))
    async with started(pipeline):
        for ran, expected in zip(await run_all(pipeline, work), wanted, strict=True):
            assert torch.equal(ran.outputs, expected.outputs)
        sockets = open_sockets()
        for victim in (0, 1):
            before = pipeline.pids
            stop_all_threads(before[victim])  # So that the steps are under way for sure.
            under_way = [asyncio.create_task(pipeline.run(*one_row(page))) for page in range(3)]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in under_way)
            os.kill(before[victim], signal.SIGKILL)
            ended = await asyncio.wait_for(asyncio.gather(*under_way, return_exceptions=True), NOTICED_WITHIN_S)
            assert [type(each) for each in ended] == [StageLost] * 3
            with pytest.raises(StageLost):
                await pipeline.run(*one_row(0))

            await pipeline.start()
            assert not set(before) & set(pipeline.pids)
            assert not any(runs(pid) for pid in before)
            for ran, expected in zip(await run_all(pipeline, work), wanted, strict=True):
                assert torch.equal(ran.outputs, expected.outputs)
            # Those of the last pipeline have been told to close; on a busy machine it takes a moment.
            await asyncio.to_thread(until, lambda: open_sockets() <= sockets)
        pids = pipeline.pids
    assert not any(runs(pid) for pid in pids)
    await pipeline.stop()


@pytest.mark.system
@pytest.mark.usefixtures("forked_stages")
async def test_a_step_that_fails_here_is_that_step_alone(windowed: Path) -> None:
    """A page that does not exist is found in the first stage; steps before and behind it are computed."""
    pipeline = pipeline_of(windowed, 2)
    async with started(pipeline):
        good, bad, after = await asyncio.gather(
            pipeline.run(*one_row(0)),
            pipeline.run(*one_row(PAGES)),
            pipeline.run(*one_row(0, position=1)),
            return_exceptions=True,
        )
        assert isinstance(bad, ValueError)
        assert isinstance(good, Ran) and isinstance(after, Ran)


@pytest.mark.system
@pytest.mark.usefixtures("forked_stages")
async def test_an_idle_pipeline_stays(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty steps go round while nothing is to be computed, and steps come through between them."""
    monkeypatch.setattr("cloud_server.stages.live.IDLE_SEND_EVERY_S", 0.02)
    pipeline = pipeline_of(windowed, 2)
    async with started(pipeline):
        for position in range(4):
            await asyncio.sleep(0.1)
            assert (await pipeline.run(*one_row(0, position))).finite == [True]


async def test_what_fails_in_a_stage_comes_back_as_failed(windowed: Path) -> None:
    """A stage marks the step it cannot compute, passes failed and empty ones on, and computes the next."""
    second = range(3, LAST)
    alone = layers_of(windowed, second)
    boards: list[Board] = []
    boards += [Board(lambda *post, other=other: boards[other].put(*post), b"a key of this test") for other in (1, 0)]

    def place(rank: int) -> Place:
        return Place(rank, 2, "127.0.0.1", torch.device("cpu"), "links")

    with ThreadPoolExecutor(2) as threads:
        joining = threads.submit(Link, boards[1], place(1), HIDDEN, torch.float32)
        link = Link(boards[0], place(0), HIDDEN, torch.float32)
        stage = threads.submit(relay, joining.result(), layers_of(windowed, second), 1)
        del joining
        bad, good = one_row(PAGES), one_row(0)

        link.send(StepHead(1, microseconds=10), bad.spans, bad.hidden[0])
        head, _, outputs, _ = link.receive()
        assert (head.number, head.failed, outputs) == (1, 1, None)

        link.send(StepHead(2, failed=0, microseconds=10), [], None)
        head, _, outputs, _ = link.receive()
        assert (head.number, head.failed, head.microseconds, outputs) == (2, 0, 10, None)

        link.send(StepHead(), [], None)
        assert link.receive() == (StepHead(), [], None, ())

        link.send(StepHead(3, microseconds=10), good.spans, good.hidden[0])
        head, spans, outputs, _ = link.receive()
        assert (head.number, head.failed, spans) == (3, -1, []) and head.microseconds > 10
        assert outputs is not None and torch.equal(outputs, alone(good.hidden[0], good.spans))

        link.abort()  # The leader is gone.
        with pytest.raises(RuntimeError):
            stage.result(30)


@pytest.mark.usefixtures("forked_stages")
async def test_every_stage_clears_what_it_is_told_to(windowed: Path) -> None:
    """A row behind cleared slots is what it is on one process, and not what it was before."""
    pages, rows = (2, 0), torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(2))
    clearing = [(NOWHERE, pages[0] * PAGE_POSITIONS, 4)]
    found = []
    for runner in (LocalRunner(layers_of(windowed, range(FIRST, LAST))), pipeline_of(windowed, 2)):
        async with started(runner):
            await runner.run([rows[:8]], [PagedSpan(pages, 0, 8)])
            before = (await runner.run([rows[8:]], [PagedSpan(pages, 8, 1)])).outputs
            after = (await runner.run([rows[8:]], [PagedSpan(pages, 8, 1)], clearing)).outputs
        assert not torch.allclose(before, after, atol=1e-3)
        found.append(after)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)
