"""Streaming where a system lacks calls that Linux has."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
import torch
from streamed_units import loading, units_of

from device_agent.profiling.disk import measured_read
from split_model.checkpoint import Checkpoint
from split_model.offload.units import Unit
from split_model.slices import whole
from split_model.stack import Span, Stack

LACKS_ON_MACOS = ["O_DIRECT", "posix_fadvise", "posix_fallocate", "POSIX_FADV_DONTNEED", "preadv"]


@pytest.mark.parametrize("no_cache", [None, fcntl.F_GETFD])
def test_streaming_is_the_same_without_them(
    no_cache: int | None, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits as of a model that stays in memory, disks can be measured, and macOS is told to cache nothing, where it is
    there (a call that does nothing stands for it here)."""
    for name in LACKS_ON_MACOS:
        monkeypatch.delattr(os, name, raising=False)
    if no_cache is not None:
        monkeypatch.setattr(fcntl, "F_NOCACHE", no_cache, raising=False)
    asked: list[int] = []
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, call, value: asked.append(call))
    checkpoint = Checkpoint.open(tiny)
    hidden = torch.randn(5, checkpoint.spec.hidden_size, generator=torch.Generator().manual_seed(1))
    right = Stack.load(checkpoint, whole(checkpoint.spec), torch.float32)
    with loading(checkpoint, units_of(4), rings=1) as loader:
        streamed = Stack.load(checkpoint, whole(checkpoint.spec), torch.float32, loader=loader)
        for _ in range(2):
            found = [stack.forward(hidden, [Span(stack.new_cache(5), 5)]) for stack in (right, streamed)]
            assert torch.equal(*found)
        assert not loader._store.direct and loader._store.path(Unit(0, "mlp")).exists()
    monkeypatch.setattr("device_agent.profiling.disk.SECONDS", 0.05)
    assert measured_read(tmp_path) > 0
    assert set(asked) == ({no_cache} if no_cache is not None else set())
