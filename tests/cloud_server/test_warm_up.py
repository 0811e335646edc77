"""A cloud server that warms up before it is healthy, and what is left of it: nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from clouds import chain_over, cloud_here, device_hello, greedy, remote_middle
from oracle import oracle_tokens, prompt_for
from torch.utils._python_dispatch import TorchDispatchMode

from cloud_server.stages.layer_step import StepFailed
from cloud_server.stages.runner import LocalRunner, warm_up
from device_agent.sharing.compute import Compute
from split_model.warming import WARM_ROWS


async def test_all_sizes_are_run_before_anybody_is_admitted(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the largest step; no page is used, no session is there, and neither costs nor metrics have learned."""
    rows: list[int] = []
    run = LocalRunner.run

    async def noted(self: LocalRunner, hidden: Any, spans: Any, moves: Any = ()) -> Any:
        rows.append(sum(span.rows for span in spans))
        return await run(self, hidden, spans, moves)

    monkeypatch.setattr(LocalRunner, "run", noted)
    async with cloud_here(tiny, 1, warms=True, step_rows=64) as cloud:
        engine, metrics = cloud.server.engine, cloud.server.engine.metrics
        assert set(rows) == {size for size in WARM_ROWS if size <= 64}
        assert engine.ledger.pages.used == 0 and not engine.ledger.entries
        assert engine.pace.load.mu == 0
        assert metrics.step_rows._sum.get() == 0 and metrics.step_seconds._sum.get() == 0
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(cloud.url.replace("ws", "http", 1) + "/health")).status_code == 200
        compute = Compute()
        async with remote_middle(cloud.url, device_hello(tiny, 1, 0)) as middle:
            prompt = prompt_for(tiny, 20, seed=1)
            assert await greedy(chain_over(tiny, 1, 0, middle, compute, 16), list(prompt), 20) == oracle_tokens(
                tiny, prompt, 20
            )
        compute.stop()


async def test_the_event_loops_thread_computes_nothing(tiny: Path) -> None:
    """A second thread with large operations has a second team of OpenMP threads: all later steps would be slower."""
    largest = 0

    class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """What this thread does; others are not seen."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            places = [each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)]
            if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in places:
                largest = max(largest, result.numel())  # Not a view: numbers were computed.
            return result

    async with cloud_here(tiny, 1) as cloud:
        runner = cloud.server.engine._runner
        assert isinstance(runner, LocalRunner)
        with Seen():  # type: ignore[no-untyped-call]
            await warm_up(runner.run, runner._step, 512)
            assert largest == 0
            torch.zeros(100)
            assert largest == 100, "it would have been seen"


async def test_a_step_that_fails_holds_nobody_up(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is there all the same: smaller steps may work."""

    async def failing(*given: object) -> Any:
        raise StepFailed("out of memory on a single row")

    monkeypatch.setattr(LocalRunner, "run", failing)
    async with cloud_here(tiny, 1) as cloud:
        assert cloud.server.engine.alive
