"""A cloud server whose layers are shared by several processes, on other machines too: they prove that they belong, die,
come back, and cost no token."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.testbed.network import Network
from bench.testbed.possible import obstacle
from bench.testbed.scenario import Link
from checkpoints import DEMO
from clouds import cloud_here, stages_of, tokens_through, until
from forked import ForkedProcess
from oracle import oracle_tokens, prompt_for
from processes import ROOT, free_port, with_paths

pytestmark = pytest.mark.system

TOKENS = 64
UNDER_WAY = 160
"""Rows computed when all prompts are, and most of the answers are still to come."""
WITHIN_S = 120.0
SECRET = "a secret for these stages"
PROMPTS = [prompt_for(DEMO, 20 + 11 * each, seed=each) for each in range(4)]
SETTINGS: dict[str, Any] = {"threads": 1, "stage_token": SECRET}


@contextmanager
def stage(where: str, log: Path, *, secret: str = SECRET, space: str = "") -> Iterator[Any]:
    """``trilby stage``, in a network namespace where one is named; killed with the block."""
    words = ["--join", where, "--model", str(DEMO), "--threads", "1"]
    module, secrets = "cloud_server.stages.stage", {"TRILBY_STAGE_TOKEN": secret}
    if space:
        command = ["ip", "netns", "exec", space, sys.executable, "-m", module, *words]
        with log.open("ab") as said:
            process: Any = subprocess.Popen(command, cwd=ROOT, env=with_paths(**secrets), stdout=said, stderr=said)
    else:
        process = ForkedProcess(module, *words, log=log, environment=secrets).start().process
    try:
        yield process
    finally:
        process.kill()
        process.wait(WITHIN_S)


def wanted() -> list[list[int]]:
    """What transformers says."""
    return [oracle_tokens(DEMO, prompt, TOKENS) for prompt in PROMPTS]


@pytest.mark.usefixtures("forked_stages")
async def test_stages_die_and_come_back_by_themselves(tmp_path: Path) -> None:
    """One of the three is on another machine: it dials again when a local one dies, and is replaced when it dies."""
    where, log = f"127.0.0.1:{free_port()}", tmp_path / "stage.log"
    settings = {**SETTINGS, "stages": 3, "remote_stages": 1, "stage_address": where}
    with stage(where, log) as remote, ExitStack() as later:
        async with cloud_here(DEMO, 2, **settings) as cloud:
            steps, engine = cloud.server.engine.metrics.step_rows, cloud.server.engine
            answers = asyncio.create_task(tokens_through(cloud, DEMO, PROMPTS, TOKENS))
            await until(lambda: steps._sum.get() > UNDER_WAY, WITHIN_S)
            os.kill(stages_of(cloud)[0], signal.SIGKILL)
            assert await answers == wanted()
            assert cloud.server.engine.metrics.replays._value.get() >= len(PROMPTS)
            restarts = cloud.server.engine.metrics.stage_restarts._value.get()  # On a busy machine one may not succeed.
            assert restarts >= 1 and remote.poll() is None
            answers = asyncio.create_task(tokens_through(cloud, DEMO, PROMPTS, TOKENS))
            before = steps._sum.get()
            await until(lambda: steps._sum.get() > before + UNDER_WAY, WITHIN_S)
            remote.kill()
            await until(lambda: not engine.alive, WITHIN_S)
            later.enter_context(stage(where, log))
            assert await answers == wanted()
            assert cloud.server.engine.metrics.stage_restarts._value.get() > restarts


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 4])
async def test_stages_of_one_machine(stages: int) -> None:
    """Several sessions at once through two and four processes."""
    async with cloud_here(DEMO, 2, stages=stages, threads=1) as cloud:
        assert len(stages_of(cloud)) == stages - 1
        assert await tokens_through(cloud, DEMO, PROMPTS, TOKENS) == wanted()


LEADER = """
import asyncio, json, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/system"]
from clouds import cloud_here, tokens_through, until
from test_remote_stages import DEMO, PROMPTS, SETTINGS, TOKENS, UNDER_WAY, WITHIN_S

async def lead():
    settings = dict(SETTINGS, stages=2, remote_stages=1, stage_address=sys.argv[1])
    async with cloud_here(DEMO, 2, **settings) as cloud:
        answers = asyncio.create_task(tokens_through(cloud, DEMO, PROMPTS, TOKENS))
        metrics = cloud.server.engine.metrics
        await until(lambda: metrics.step_rows._sum.get() > UNDER_WAY, WITHIN_S)
        print(json.dumps("under way"), flush=True)
        await until(lambda: not cloud.server.engine.alive, WITHIN_S)
        print(json.dumps("lost"), flush=True)
        found = await answers
        print(json.dumps([found, metrics.replays._value.get(), metrics.stage_restarts._value.get()]), flush=True)

asyncio.run(lead())
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(obstacle()), reason=f"no network namespaces here: {obstacle()}")
def test_stages_in_two_network_namespaces(tmp_path: Path) -> None:
    """A stage with a wrong secret is refused, the right one comes in; it is killed under way, and another takes its
    place: the tokens are transformers'."""
    hosts = ["cloud", "stage"]
    link = Link("way", "cloud", "stage", 50.0, 50.0, 0.0, 0.0, False, "", (1.0, 1.0), 0.0, None, 0.0)
    with closing(Network.make(f"try-stage-{os.getpid()}", hosts, [link])) as network:
        where = f"{network.address('stage', 'cloud')}:8002"
        space = network.namespace("stage")
        command = ["ip", "netns", "exec", network.namespace("cloud"), sys.executable, "-c"]
        program = LEADER.format(tests=str(ROOT / "tests"))
        leader = subprocess.Popen([*command, program, where], cwd=ROOT, env=with_paths(), stdout=subprocess.PIPE)
        assert leader.stdout is not None
        with leader, ExitStack() as stages:
            stages.callback(leader.kill)
            said = (json.loads(line) for line in leader.stdout if line.startswith((b'"', b"[")))
            stranger = stages.enter_context(stage(where, tmp_path / "stranger", secret="x" * 20, space=space))
            first = stages.enter_context(stage(where, tmp_path / "stage", space=space))
            assert next(said) == "under way"
            assert stranger.wait(30) == 1 and b"secret is another one" in (tmp_path / "stranger").read_bytes()
            first.kill()
            assert next(said) == "lost"
            stages.enter_context(stage(where, tmp_path / "stage", space=space))
            found, replays, restarts = next(said)
    assert found == wanted() and replays >= len(PROMPTS) and restarts == 1
