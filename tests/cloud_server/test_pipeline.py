"""The pipeline of stages: the same outputs as one process, steps that overlap, stages that die and come back."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from processes import stop_all_threads
from tiny_models import build_tiny

from cloud_server.cache.attention import choose_backend
from cloud_server.cache.moving import NOWHERE, Move, copied
from cloud_server.cache.pages import Pages
from cloud_server.cache.pool import KVPool, Moves
from cloud_server.cache.span import PagedSpan
from cloud_server.stages.layer_step import LayerStep, Ran
from cloud_server.stages.link import Link, Place
from cloud_server.stages.live import LivePipeline, StageHangs
from cloud_server.stages.pipeline import PipelineRunner
from cloud_server.stages.plan import stage_layers
from cloud_server.stages.processes import StageProcesses
from cloud_server.stages.runner import LocalRunner, Runner, StageLost
from cloud_server.stages.stage import StageConfig, relay
from cloud_server.stages.step_wire import StepHead
from peers.board import Board
from peers.group import Group
from split_model.checkpoint import Checkpoint
from split_model.slices import Slice
from split_model.stack import Stack
from split_model.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
FIRST, LAST = 1, 6
HIDDEN = 32
PAGES, PAGE_POSITIONS = 24, 8
NOTICED_WITHIN_S = 20.0
"""A dead stage is noticed in milliseconds; the rest is for a busy machine."""


class Work(NamedTuple):
    """What a runner is given as one step."""

    hidden: list[torch.Tensor]
    spans: list[PagedSpan]
    moves: Moves = ()


class GatedStep(LayerStep):
    """Layers that count their steps and begin none while the gate is closed."""

    def __init__(self, step: LayerStep) -> None:
        super().__init__(step.stack, step.pool, step.backend)
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0
        self.done = 0

    def __call__(self, hidden: torch.Tensor, spans: Sequence[PagedSpan], moves: Moves = ()) -> torch.Tensor:
        self.begun += 1
        assert self.gate.wait(60)
        outputs = super().__call__(hidden, spans, moves)
        self.done += 1
        return outputs


@pytest.fixture(scope="session")
def windowed(tiny_folder: Path) -> Path:
    """Six layers, the first two without and the others with a sliding window: no two stages are alike."""
    path = tiny_folder / "pipeline"
    return path if path.exists() else build_tiny("qwen2-windows", path, num_hidden_layers=6)


def layers_of(model: Path, layers: range, dtype: torch.dtype = torch.float32) -> LayerStep:
    """Some layers and pages for them, in this process."""
    checkpoint = Checkpoint.open(model)
    spec = checkpoint.spec
    stack = Stack.load(checkpoint, Slice(layers.start, layers.stop), dtype)
    pool = KVPool(len(layers), spec.num_kv_heads, spec.head_dim, dtype, "cpu", PAGES, PAGE_POSITIONS)
    return LayerStep(stack, pool, choose_backend("cpu", dtype))


def like(model: Path) -> StageConfig:
    """What every stage is like."""
    return StageConfig(join="127.0.0.1:1", model=str(model), stage_token="a secret of this test", seat=1, threads=1)


def pipeline_of(model: Path, stages: int, dtype: torch.dtype = torch.float32) -> PipelineRunner:
    """A runner that is not yet started."""
    layers = stage_layers(FIRST, LAST, stages)
    return PipelineRunner(layers_of(model, layers[0], dtype), layers, like(model))


@asynccontextmanager
async def started(runner: Runner) -> AsyncIterator[None]:
    """The runner's life."""
    await runner.start()
    try:
        yield
    finally:
        await runner.stop()


def conversations(steps: int, dtype: torch.dtype = torch.float32) -> list[Work]:
    """Steps of five sessions that grow, branch and keep some of it, go back and write over what was there, end, and
    begin in others' pages, or where others are."""
    chance = random.Random(11)
    numbers = torch.Generator().manual_seed(11)
    pages: Pages[int] = Pages(PAGES, PAGE_POSITIONS)
    lengths: dict[int, int] = {}
    trees: dict[int, Tree] = {}
    moves: list[Move] = []
    work: list[Work] = []

    def slot(session: int, position: int) -> int:
        return pages.table(session)[position // PAGE_POSITIONS] * PAGE_POSITIONS + position % PAGE_POSITIONS

    while len(work) < steps:
        hidden, spans = [], []
        before = dict(lengths)
        for session in list(trees):
            tree = trees.pop(session)
            nodes = tree.path(chance.randint(-1, len(tree) - 1))
            ends = range(tree.trunk, tree.trunk + len(nodes))
            moves += [
                (slot(session, begin), slot(session, end), 1)
                for begin, end in zip(tree.slots(nodes), ends, strict=True)
            ]
            lengths[session] += len(nodes)
            pages.truncate(session, lengths[session])
        for session in chance.sample(range(5), chance.randint(1, 5)):
            if session in lengths and chance.random() < 0.1:
                pages.close(session)
                del lengths[session]
                before.pop(session, None)
            if session not in lengths:
                source = chance.choice([None, *lengths])
                begin = 0 if source is None else chance.randint(0, lengths[source])
                if source is not None and before.get(source, -1) >= begin > 0 and pages.fork(source, session, begin):
                    moves += copied(pages.runs(source), pages.runs(session), PAGE_POSITIONS, begin)
                else:
                    pages.open(session, 8)
                    begin = 0
                lengths[session] = begin
            if chance.random() < 0.2:
                lengths[session] = chance.randint(0, lengths[session])
                pages.truncate(session, lengths[session])
            rows = chance.choice((1, 1, 1, 4, 13))
            start = lengths[session]
            if not pages.extend(session, start + rows):
                continue
            branching = None
            if rows > 1 and chance.random() < 0.5:
                trees[session] = Tree(start)
                branching = trees[session].add([chance.randint(-1, node - 1) for node in range(rows)])
            else:
                lengths[session] += rows
            hidden.append(torch.randn((rows, HIDDEN), generator=numbers).to(dtype))
            spans.append(PagedSpan(tuple(pages.table(session)), start, rows, branching))
        if spans:
            work.append(Work(hidden, spans, moves))
            moves = []
    return work


def one_row(page: int, position: int = 0) -> Work:
    """A step with one row of one session that has one page."""
    rows = torch.randn((1, HIDDEN), generator=torch.Generator().manual_seed(100 * page + position))
    return Work([rows], [PagedSpan((page,), position, 1)])


async def run_all(runner: Runner, work: Sequence[Work]) -> list[Ran]:
    """Every step, as many under way as the runner has stages."""
    room = asyncio.Semaphore(runner.depth)

    async def one(step: Work) -> Ran:
        async with room:
            return await runner.run(step.hidden, step.spans, step.moves)

    return await asyncio.gather(*(one(step) for step in work))


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for a condition, on the thread of whoever calls."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def proc(pid: int, name: str) -> bytes:
    """What Linux says of a process; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def open_sockets() -> int:
    """How many this process has."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += os.readlink(each).startswith("socket:")
    return found


def runs(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of it."""
    return proc(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


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
async def test_an_idle_pipeline_stays(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty steps go round while nothing is to be computed, and steps come through between them."""
    monkeypatch.setattr("cloud_server.stages.live.IDLE_SEND_EVERY_S", 0.02)
    pipeline = pipeline_of(windowed, 2)
    async with started(pipeline):
        for position in range(4):
            await asyncio.sleep(0.1)
            assert (await pipeline.run(*one_row(0, position))).finite == [True]


@pytest.mark.system
async def test_a_stage_that_cannot_load_is_said_at_once(windowed: Path, tmp_path: Path) -> None:
    """Start fails with StageLost instead of waiting, leaves no process, and so does run."""
    layers = stage_layers(FIRST, LAST, 2)
    pipeline = PipelineRunner(layers_of(windowed, layers[0]), layers, like(tmp_path))
    with pytest.raises(StageLost, match="cannot load its layers"):
        await pipeline.start()
    assert pipeline.pids == []
    with pytest.raises(StageLost):
        await pipeline.run(*one_row(0))


@pytest.mark.system
async def test_a_stage_that_loads_for_ever_is_given_up(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is any stage, given less time than it takes to start; it is ended."""
    monkeypatch.setattr("cloud_server.stages.live.LOADED_WITHIN_S", 0.2)
    pipeline = pipeline_of(windowed, 3)
    with pytest.raises(StageLost, match=r"stages \[1, 2\] have not loaded"):
        await pipeline.start()
    assert pipeline.pids == []


@pytest.mark.system
async def test_a_first_stage_that_does_not_end_is_said(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No new pipeline is begun over pages that it may still write to."""
    monkeypatch.setattr("cloud_server.stages.live.END_WITHIN_S", 0.3)
    layers = stage_layers(FIRST, LAST, 2)
    step = GatedStep(layers_of(windowed, layers[0]))
    pipeline = PipelineRunner(step, layers, like(windowed))
    await pipeline.start()
    live = pipeline._pipeline
    assert live is not None
    step.gate.clear()
    try:
        ended = asyncio.create_task(pipeline.run(*one_row(0)))
        await asyncio.to_thread(until, lambda: step.begun == 1)
        with pytest.raises(StageHangs):
            await pipeline.start()
        with pytest.raises(StageLost):
            await ended
    finally:
        step.gate.set()
    monkeypatch.undo()
    await asyncio.to_thread(live.end)


@pytest.mark.system
def test_who_waits_for_the_end_of_a_process_waits_not_for_ever(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where what was killed seems to be there still."""
    monkeypatch.setattr("cloud_server.stages.processes.KILLED_WITHIN_S", 0.2)
    go_on = threading.Event()

    def hang(ended: Future[str]) -> None:
        assert go_on.wait(60), ended.result()

    processes = StageProcesses()
    processes.ended.add_done_callback(hang)
    processes.start([like(windowed)] * 2)
    began = time.monotonic()
    processes.stop()
    assert time.monotonic() - began < 30
    go_on.set()
    monkeypatch.undo()
    processes.stop()
    assert not any(runs(pid) for pid in processes.pids)


def test_a_stage_that_goes_when_the_event_loop_has_gone_ends_all_waits() -> None:
    """A thread learns of it last of all, and others wait for the links."""
    aborted: list[bool] = []

    class Waiting:
        def abort(self) -> None:
            aborted.append(True)

    async def begun() -> LivePipeline:
        return LivePipeline(None, Group(1, {1: b""}, b"", {}))  # type: ignore[arg-type]

    pipeline = asyncio.run(begun())
    pipeline._link = Waiting()  # type: ignore[assignment]
    pipeline.lose("a test")
    assert aborted and not pipeline.whole


@pytest.mark.system
async def test_stages_are_not_told_secrets(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cloud's credential is neither on a stage's command line nor in its environment."""
    monkeypatch.setenv("TRILBY_CLOUD_TOKEN", "sesame-open-42")
    pipeline = pipeline_of(windowed, 2)
    async with started(pipeline):
        told = [proc(pipeline.pids[0], name) for name in ("cmdline", "environ")]
    assert all(told) and not any(b"sesame-open-42" in each for each in told)


LEADER = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {root!r} + "/tests", {root!r} + "/tests/cloud_server"]
from test_pipeline import pipeline_of, one_row, started

async def lead():
    pipeline = pipeline_of(Path(sys.argv[1]), 3)
    async with started(pipeline):
        await pipeline.run(*one_row(0))
        Path(sys.argv[2]).write_text(" ".join(map(str, pipeline.pids)))
        await asyncio.sleep(600)

asyncio.run(lead())
"""


@pytest.mark.system
def test_no_stage_outlives_its_leader(windowed: Path, tmp_path: Path) -> None:
    """Stages of a process that was killed outright end by themselves, one that hangs at that moment too."""
    said = tmp_path / "pids"
    program = LEADER.format(root=str(ROOT))
    with subprocess.Popen([sys.executable, "-c", program, str(windowed), str(said)], cwd=ROOT) as leader:
        try:
            until(lambda: said.exists() and len(said.read_text().split()) == 2, 120)
            pids = [int(each) for each in said.read_text().split()]
            assert all(runs(pid) for pid in pids)
            stop_all_threads(pids[0])
        finally:
            leader.kill()
    until(lambda: not runs(pids[1]))
    os.kill(pids[0], signal.SIGCONT)
    until(lambda: not runs(pids[0]))


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
