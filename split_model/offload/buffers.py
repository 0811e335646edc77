"""Memory that a disk writes to and matrices are multiplied from, without a copy between."""

from __future__ import annotations

import torch

from split_model.offload.layout import ALIGNMENT, UnitMatrix


def aligned(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes], beginning at a multiple of `ALIGNMENT`. Pages are taken as they are written."""
    return first_aligned(torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8), nbytes)


def first_aligned(whole: torch.Tensor, nbytes: int) -> torch.Tensor:
    """The first so many bytes of memory, uint8, that begin so; it has `ALIGNMENT` more."""
    skipped = -whole.data_ptr() % ALIGNMENT
    return whole[skipped : skipped + nbytes]


def view_of(memory: torch.Tensor, start: int, matrix: UnitMatrix, dtype: torch.dtype) -> torch.Tensor:
    """The matrix [out, in] whose bytes begin at `start` of `memory`, uint8; it shares them."""
    outputs, inputs = matrix.shape
    found = memory[start : start + matrix.nbytes].view(dtype)
    return found.view(inputs, outputs).t() if matrix.turned else found.view(outputs, inputs)
