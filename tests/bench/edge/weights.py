"""A checkpoint that is nowhere: every member makes the weights it asks for, the same numbers everywhere.

What is measured is speed, and speed does not read the weights; but rows must stay finite, and members must agree.
"""

from __future__ import annotations

import math
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import torch

from split_model.checkpoint import Checkpoint
from split_model.errors import BadCheckpoint
from split_model.safetensors_file import TensorEntry
from split_model.spec import ModelSpec
from split_model.weight_parts import WeightPart

STRIDE = 17
"""Each row of a matrix is the one before, moved by so many numbers: cheap to make in any part, and of full rank."""

PERIOD = 1 << 21
"""Numbers that were drawn; matrices begin somewhere among them, by their names."""


class RandomCheckpoint(Checkpoint):
    """A model of this architecture, of which nothing is stored."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(Path("random"), spec, {})

    def check(self, part: WeightPart) -> None:
        """Every tensor is as the config says."""

    def entry(self, name: str) -> TensorEntry:
        """Raises BadCheckpoint: nothing is stored."""
        raise BadCheckpoint(f"{name} is stored nowhere")

    def digest(self) -> str:
        """One for all."""
        return "random"

    def read_into(self, part: WeightPart, out: torch.Tensor) -> None:
        """Fills ``out`` with small numbers; norms' weights are about 1."""
        into = out.t() if part.turned else out
        full = part.full_shape if len(part.full_shape) < 3 else (part.full_shape[0], math.prod(part.full_shape[1:]))
        rows = range(full[0]) if part.rows is None else part.rows
        columns = range(1) if len(full) == 1 else range(full[1]) if part.columns is None else part.columns
        stride = STRIDE if len(full) > 1 else 1
        begin = _place(part.name) + stride * rows.start + columns.start
        found = _numbers().as_strided((len(rows), len(columns)), (stride, 1), begin)
        into.copy_(found if len(full) > 1 else found[:, 0] + float("norm" in part.name or "ln_" in part.name))


def _place(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % (PERIOD // 2)


@lru_cache(maxsize=1)
def _numbers() -> torch.Tensor:
    drawn = torch.empty(PERIOD).normal_(0, 0.02, generator=torch.Generator().manual_seed(7))
    return drawn
