"""Stages that fail, hang or outlive: what the pipeline says, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from processes import stop_all_threads
from stage_pipelines import (
    FIRST,
    LAST,
    ROOT,
    GatedStep,
    layers_of,
    like,
    one_row,
    pipeline_of,
    proc,
    runs,
    started,
    until,
)

from cloud_server.stages.live import LivePipeline, StageHangs
from cloud_server.stages.pipeline import PipelineRunner
from cloud_server.stages.plan import stage_layers
from cloud_server.stages.processes import StageProcesses
from cloud_server.stages.runner import StageLost
from peers.group import Group


@pytest.mark.system
@pytest.mark.usefixtures("forked_stages")
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
@pytest.mark.usefixtures("forked_stages")
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
@pytest.mark.usefixtures("forked_stages")
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
