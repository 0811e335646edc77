"""The devices that are not the CPU on which tests run: a stand-in everywhere, a GPU where there is one."""

from __future__ import annotations

import pytest
import stand_in
import torch

GPU = torch.device("cuda", 0)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

elsewhere = pytest.mark.parametrize(
    "device", [pytest.param(stand_in.DEVICE, id="stand-in"), pytest.param(GPU, id="cuda", marks=needs_gpu)]
)
"""Runs a test on each of them, as its argument ``device``."""
