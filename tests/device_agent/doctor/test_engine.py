"""What computes here, and what is said where it cannot."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from device_agent.doctor import engine
from service.doctor.finding import Finding, Say


def found_by(look: Callable[[Say], object]) -> list[Finding]:
    """What a check finds."""
    found: list[Finding] = []
    look(found.append)
    return found


def test_the_build_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version and instructions; a processor that hides its own is worth a word."""
    [found] = found_by(engine.torch_build)
    assert torch.__version__ in found.seen and "threads" in found.seen
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    [found] = found_by(engine.torch_build)
    assert found.status == "warn" and "virtual machine" in found.todo


@pytest.mark.parametrize(
    ("reason", "dtype", "status"), [("", "bfloat16", "ok"), ("no", "bfloat16", "warn"), ("no", "float32", "ok")]
)
def test_kernels(reason: str, dtype: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who computes in bfloat16 misses them."""
    monkeypatch.setattr(engine, "why_not", lambda: reason)
    [found] = found_by(lambda say: engine.kernels(dtype, say))
    assert found.status == status and reason in found.seen


def test_a_gpu_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said why, with what to do; what is looked at behind it is looked at all the same."""

    def busy(number: int) -> tuple[int, int]:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", busy)
    found, *_ = found_by(lambda say: engine.gpus("auto", say))
    assert found.status == "warn" and found.seen.endswith("unavailable") and "nvidia-smi" in found.todo


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None is fine; one that was asked for is missed; a driver without a PyTorch for it is worth a word."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(engine, "DRIVER", tmp_path / "driver")
    [found] = found_by(lambda say: engine.gpus("auto", say))
    assert (found.check, found.status) == ("GPU", "ok")
    _, missed = found_by(lambda say: engine.gpus("cuda", say))
    assert missed.status == "fail" and missed.todo
    _, odd = found_by(lambda say: engine.gpus("gpu", say))
    assert odd.status == "fail" and "auto" in odd.todo
    (tmp_path / "driver").write_text("NVRM version")
    [found] = found_by(lambda say: engine.gpus("auto", say))
    assert found.status == "warn" and "driver" in found.seen and found.todo
