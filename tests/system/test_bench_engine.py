"""The engine's benchmarks run end to end at tiny size, so that they never rot; their numbers are no test's business."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from bench.engine_devices import Devices
from bench.random_llama import TINY, mixed_lengths, prompts, write_checkpoint
from bench.rivals.llama_server import LlamaServer, LlamaUnavailable
from bench.rivals.transformers_batching import ContinuousBatching, StaticBatch
from bench.runs import Run, check
from processes import ROOT
from tiny_models import build_tiny

from cloud_server.config import CloudConfig
from split_model.reference import Reference

DEFAULT = f"{CloudConfig('').step_slack:g}"


pytestmark = pytest.mark.system


def bench(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"bench.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"},
    )


@pytest.mark.slow
def test_engine_quick() -> None:
    """One round of ours and transformers' two, with all tables; llama.cpp is left out and the reason said.

    Both settings of the slack are compared where there are many sessions, the default alone where there are few.
    """
    result = bench("engine", "--quick", "--sessions", "3", "8", "--threads", "1", "--llama", "/nowhere/python")
    assert result.returncode == 0, result.stderr
    assert "llama.cpp is left out: /nowhere/python does not start" in result.stderr
    rows = result.stdout.splitlines()
    for sessions, slacks in ((3, (DEFAULT,)), (8, (DEFAULT, "20"))):
        for rival in ("equal | transformers, static batch", "mixed | transformers, continuous batching"):
            found = [row for row in rows if row.startswith(f"| {sessions} | {rival} | ")]
            assert [row.split(" | ")[3] for row in found] == list(slacks)
    assert result.stdout.count("\n| 8 | ") == 7, "the tables of rivals (four rows), of bounds (two), of the event loop"


def test_gpu_engine_on_cpu() -> None:
    """The table for accelerators comes out on a CPU too."""
    sizes = ("--layers", "2", "--hidden", "64", "--heads", "4", "--intermediate", "96", "--context", "40")
    few = ("--rows", "1", "3", "--copy-bytes", "1000000", "--tokens", "3")
    result = bench("gpu_engine", "--device", "cpu", *sizes, *few)
    assert result.returncode == 0, result.stderr
    assert "attention sdpa. 2 layers, hidden size 64" in result.stdout
    assert "\n| 1 | " in result.stdout
    assert "\n| 3 | " in result.stdout
    assert "Prefill of one session" in result.stdout
    assert "\n| fused | sampled | 3 of 3 | " in result.stdout, "an agent's rounds"


def test_sessions_on_the_engine_say_what_one_process_says(tmp_path: Path) -> None:
    """The tokens that are counted are the model's own: those of the one-process reference, whatever is batched."""
    checkpoint = build_tiny("llama", tmp_path)
    reference = Reference.load(checkpoint)
    devices = Devices(checkpoint, torch.float32, sessions=4, positions=64, slack=20)
    try:
        for seed in (1, 2):
            generator = torch.Generator().manual_seed(seed)
            these = [torch.randint(3, 97, (length,), generator=generator).tolist() for length in (5, 40, 17, 9)]
            run = check(devices.run(these, 12), 4, 12)
            assert run.tokens == [reference.generate(prompt, 12) for prompt in these]
            assert all(times == sorted(times) and times[0] > run.began for times in run.times)
        assert min(devices.lags(these, 12)) >= -1e-3
    finally:
        devices.close()


def test_the_rivals_agree_with_each_other(tmp_path: Path) -> None:
    """transformers' static batch and its continuous batching give the same tokens for the same prompts."""
    checkpoint = write_checkpoint(TINY, tmp_path)
    these = prompts(TINY, [24] * 3, 1)
    static = check(StaticBatch(checkpoint).run(these, 6), 3, 6)
    with closing(ContinuousBatching(checkpoint, 3, 64, 6)) as batching:
        continuous = check(batching.run(these, 6), 3, 6)
    assert continuous.tokens == static.tokens


def test_a_child_that_ends_is_unavailable(tmp_path: Path) -> None:
    """An interpreter that gives up leaves a reason, not a hanging benchmark."""
    with pytest.raises(LlamaUnavailable, match="it needs: llama-cpp-python"):
        LlamaServer("false", tmp_path, 1)


def test_speeds_are_of_all_sessions() -> None:
    """Tokens a second over the whole run, and from when the last session had its first token."""
    run = Run(10.0, [[11.0, 12.0, 13.0], [12.5, 13.5, 14.0]], [[1, 2, 3], [4, 5, 6]])
    assert run.prefill_s == 2.5
    assert run.per_second == 6 / 4
    assert run.decoded_per_second == 3 / 1.5
    with pytest.raises(RuntimeError, match="of \\[2, 3\\] tokens"):
        check(Run(10.0, run.times, [[1, 2], [4, 5, 6]]), 2, 3)


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_mixed_prompts_are_as_much_work(count: int) -> None:
    """Mixed lengths add up to as many tokens as equal ones, and are mixed."""
    lengths = mixed_lengths(count, 256)
    assert sum(lengths) == 256 * count
    assert len(set(lengths)) == count
