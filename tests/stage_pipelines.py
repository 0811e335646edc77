"""Pipelines of stages for tests, and work for them."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch

from cloud_server.cache.moving import Move, copied
from cloud_server.cache.pages import Pages
from cloud_server.cache.pool import KVPool, Moves
from cloud_server.cache.pool_attention import choose_backend
from cloud_server.cache.span import PagedSpan
from cloud_server.stages.layer_step import LayerStep, Ran
from cloud_server.stages.pipeline import PipelineRunner
from cloud_server.stages.plan import stage_layers
from cloud_server.stages.runner import Runner
from cloud_server.stages.stage import StageConfig
from split_model.checkpoint import Checkpoint
from split_model.slices import Slice
from split_model.stack import Stack
from split_model.tree import Tree

ROOT = Path(__file__).resolve().parents[1]

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
