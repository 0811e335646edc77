"""Rows on their way from and to one device: looked at, unpacked and packed."""

from __future__ import annotations

import asyncio

import torch

from split_model.packed_rows import shortest, unpack
from split_model.tensor_bytes import from_bytes
from wire.errors import Code, SessionFailed
from wire.frames import Tensor
from wire.hello import CloudIdentity
from wire.limits import PACK_BYTES

APART_BYTES = 64 * 2**10
"""Rows of more bytes are unpacked on another thread, and not packed here at all."""


class DeviceRows:
    """Rows of the model that ``identity`` names."""

    def __init__(self, identity: CloudIdentity) -> None:
        self._identity = identity
        self._packs = False
        """Whether the device packed its last rows: its link is slow, so answers are packed too."""

    def check(self, tensor: Tensor) -> None:
        """Raises ``SessionFailed`` for rows of another model."""
        expected = self._identity
        if tensor.dtype != expected.dtype or len(tensor.shape) != 2 or tensor.shape[1] != expected.hidden_size:
            raise SessionFailed(
                Code.SHAPE_MISMATCH,
                f"hidden states of shape {list(tensor.shape)} in {tensor.dtype} came, "
                f"[rows, {expected.hidden_size}] in {expected.dtype} is expected",
            )

    async def read(self, tensor: Tensor) -> torch.Tensor:
        """The rows that came, a view of the received bytes where they are not packed; many that are packed are unpacked
        on another thread, since the event loop is everybody's. Raises ``SessionFailed`` where they cannot be."""
        if tensor.packed or len(tensor.data) >= PACK_BYTES:  # Shorter ones are never packed and say nothing.
            self._packs = tensor.packed
        if not tensor.packed:
            return from_bytes(tensor.dtype, tensor.shape, tensor.data)
        try:
            if len(tensor.data) < APART_BYTES:
                return unpack(tensor.dtype, tensor.shape, tensor.data)
            return await asyncio.to_thread(unpack, tensor.dtype, tensor.shape, tensor.data)
        except ValueError:
            raise SessionFailed(Code.SHAPE_MISMATCH, "hidden states came that cannot be unpacked") from None

    def written(self, rows: torch.Tensor) -> Tensor:
        """Rows as they leave."""
        return Tensor(*shortest(rows, self._packs and PACK_BYTES <= rows.nbytes < APART_BYTES))
