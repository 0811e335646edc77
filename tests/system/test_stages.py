"""A cloud server whose layers are shared by several processes: the same tokens, also when one of them is killed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from checkpoints import DEMO
from clouds import cloud_here, stages_of, tokens_through, until
from oracle import oracle_tokens, prompt_for

pytestmark = pytest.mark.system

TOKENS = 24
START_WITHIN_S = 120.0


@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.slow)])
async def test_stages_give_transformers_tokens(stages: int) -> None:
    """Several sessions at once through two and four processes."""
    prompts = [prompt_for(DEMO, 20 + 11 * each, seed=each) for each in range(4)]
    async with cloud_here(DEMO, 2, stages=stages, threads=1) as cloud:
        await until(lambda: cloud.server.engine.alive, START_WITHIN_S)
        assert len(stages_of(cloud)) == stages - 1
        got = await tokens_through(cloud, DEMO, prompts, TOKENS)
    assert got == [oracle_tokens(DEMO, prompt, TOKENS) for prompt in prompts]


async def test_a_killed_stage_costs_a_replay_and_no_token() -> None:
    """One of two processes is killed while four answers are being generated: all go on once it has been replaced."""
    prompts = [prompt_for(DEMO, 20 + 11 * each, seed=each) for each in range(4)]
    async with cloud_here(DEMO, 2, stages=2, threads=1) as cloud:
        await until(lambda: cloud.server.engine.alive, START_WITHIN_S)
        answers = asyncio.create_task(tokens_through(cloud, DEMO, prompts, TOKENS))
        steps = cloud.server.engine.metrics.step_rows
        await until(lambda: steps._sum.get() > 200, START_WITHIN_S)
        assert not answers.done()
        os.kill(stages_of(cloud)[0], signal.SIGKILL)
        got = await answers
        assert cloud.server.engine.metrics.replays._value.get() >= 4
        assert cloud.server.engine.metrics.stage_restarts._value.get() == 1
    assert got == [oracle_tokens(DEMO, prompt, TOKENS) for prompt in prompts]
