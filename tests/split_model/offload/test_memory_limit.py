"""A process with a memory limit that its weights do not fit computes the same as one without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import build_tiny

BUDGET = 110 * 10**6
PROGRAM = """
import resource, sys
from pathlib import Path
import torch
from split_model.checkpoint import Checkpoint
from split_model.offload.budget import residence
from split_model.offload.loader import Loader
from split_model.slices import whole
from split_model.stack import Span, Stack

torch.set_num_threads(1)
folder, budget, group = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.nn.functional.linear(torch.randn(20, 512), torch.randn(512, 512))
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
if group:
    limit = base + (budget or int(sys.argv[4]))
    for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "memory.swap.max"):
        if Path(group, name).exists():
            Path(group, name).write_text("0" if "swap" in name else str(limit))
    Path(group, "cgroup.procs").write_text("0")
checkpoint = Checkpoint.open(folder)
loader = None
if budget:
    plan = residence(checkpoint.spec, "float32", budget, positions=64, rows=20)
    assert plan.streamed
    loader = Loader.open(checkpoint, plan.streamed, torch.float32, plan.ring_bytes)
stack = Stack.load(checkpoint, whole(checkpoint.spec), torch.float32, loader=loader)
hidden = torch.randn(20, 512, generator=torch.Generator().manual_seed(1))
for _ in range(5):
    found = stack.forward(hidden, [Span(stack.new_cache(20), 20)])
print(found.view(torch.int32).sum().item())
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group for memory."""
    root = Path("/sys/fs/cgroup")
    root = root / "memory" if (root / "memory").is_dir() else root
    folder = root / f"trilby-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("control groups cannot be made here")
    if not any((folder / name).exists() for name in ("memory.limit_in_bytes", "memory.max")):
        folder.rmdir()
        pytest.skip("there is no memory controller here")
    yield folder
    folder.rmdir()


def compute(folder: Path, budget: int, group: Path | None) -> subprocess.CompletedProcess[str]:
    words = [str(folder), str(budget), "" if group is None else str(group), str(BUDGET)]
    return subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_peak_is_below_the_budget_and_nothing_else_changes(tmp_path: Path, group: Path) -> None:
    """Weights of 200 MB in 110 beside what torch itself takes: who kept them all would be killed, and is."""
    folder = build_tiny(
        "llama",
        tmp_path / "llama",
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
    )
    wanted = compute(folder, 0, None)
    assert wanted.returncode == 0, wanted.stderr
    within = compute(folder, BUDGET, group)
    assert within.returncode == 0, within.stderr
    assert within.stdout == wanted.stdout
    assert compute(folder, 0, group).returncode == -signal.SIGKILL
