"""What this machine can do at best: bytes a second through few rows, and operations a second through many."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from split_model.matrix import Matrix

REPEATS = 7


def seconds(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Median time of ``work`` to its end on the device, after one call that is not counted."""
    times = []
    for _ in range(repeats + 1):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


@torch.inference_mode()
def product_bytes_per_s(weight_bytes: int, width: int, dtype: torch.dtype, device: torch.device) -> float:
    """Bytes of weights a second when one row is multiplied with square matrices, ``weight_bytes`` in all.

    As many bytes as the model to be judged has, for what a large cache keeps of them it keeps of the model too.
    """
    weight = torch.randn(width, width).to(device, dtype)
    matrices = [Matrix(weight.clone()) for _ in range(max(1, weight_bytes // weight.nbytes))]
    row = torch.randn(1, width).to(device, dtype)

    def multiply() -> None:
        for matrix in matrices:
            matrix(row)

    return len(matrices) * weight.nbytes / seconds(multiply, device)


@torch.inference_mode()
def copy_bytes_per_s(size: int, device: torch.device) -> float:
    """Bytes read and written a second by a copy of ``size`` bytes."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds(lambda: target.copy_(source), device)


@torch.inference_mode()
def product_flops(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second, a multiplication and an addition being two, of ``rows`` rows with a square matrix."""
    matrix = Matrix(torch.randn(width, width).to(device, dtype))
    hidden = torch.randn(rows, width).to(device, dtype)
    return 2 * rows * width * width / seconds(lambda: matrix(hidden), device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
