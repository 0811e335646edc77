"""What a stack asks of the rows of a step, and of those who hold the other shards of its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from split_model.positions import PlacedRows

Combine = Callable[[torch.Tensor], torch.Tensor]
"""One member's partial sum [rows, hidden], which it may change, to the sum over all members of its group."""


def whole_sum(partial: torch.Tensor) -> torch.Tensor:
    """The `Combine` of who holds whole layers: nothing is missing in the sum."""
    return partial


class Batch(PlacedRows, Protocol):
    """The new rows of several sessions in one step, and the place where their keys and values go.

    `look_up` is called at most once a step for each table of positions: learned ones, rotations.
    """

    @property
    def rows(self) -> int:
        """Rows of all sessions together."""
        ...

    def attend(self, layer: int, window: int | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Stores the rows' keys and values and attends to all of each row's session so far, as `attend` does.

        layer: from 0 on, in the stack. q [rows, heads, head_dim]; k, v [rows, kv_heads, head_dim].
        Returns the context [rows, heads * head_dim].
        """
        ...

    def advance(self) -> None:
        """All layers have run: the rows count from now on."""
        ...
