"""Layers on this machine that read whole texts or images at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from device_agent.chain.local import MAX_ROWS
from device_agent.sharing.compute import Compute
from split_model.device import put
from split_model.encoder import whole_texts
from split_model.stack import Stack


class LocalReadingSubmodel:
    """A stack of layers as a ``ReadingSubmodel``. What is read belongs to the tenant that is served when it is asked
    for; see ``device_agent.sharing.compute``."""

    connected = True
    max_rows = MAX_ROWS

    def __init__(self, stack: Stack, compute: Compute) -> None:
        self._stack = stack
        self._compute = compute

    def read(self, hidden: torch.Tensor, lengths: Sequence[int]) -> asyncio.Future[torch.Tensor]:
        """See ``ReadingSubmodel.read``."""
        if not 0 < sum(lengths) <= MAX_ROWS or hidden.shape != (sum(lengths), self._stack.spec.hidden_size):
            raise ValueError(f"rows of texts are {list(hidden.shape)}, of {sum(lengths)}; 1 to {MAX_ROWS} can be read")
        texts = whole_texts(self._stack, lengths)
        return self._compute.lane().submit(lambda: self._stack.run(put(hidden, self._stack.device), texts))
