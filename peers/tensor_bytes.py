"""Tensors as the bytes that they are in memory, and sums of them on threads that are not the one that computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from peers.tiles import Tile, tiles_of

SUMMED: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes that can be summed; any can be sent."""

_SERIAL: Final = 32_000
"""Elements that torch adds without a team of OpenMP's: a second one would slow down the thread that computes."""


def memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied. Raises ``ValueError`` for any other."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"a tensor on {tensor.device} with strides {tensor.stride()} cannot be sent as it lies there")
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:  # NumPy has none.
        tensor = tensor.view(torch.int16)
    return tensor.numpy().data.cast("B") if tensor.numel() else memoryview(bytearray())


@dataclass(frozen=True)
class Tiled:
    """A tensor ``[rows, …]``, its memory, and the tiles that its rows are cut into."""

    tensor: torch.Tensor
    memory: memoryview
    tiles: list[Tile]

    @classmethod
    def cut(cls, tensor: torch.Tensor, shares: Sequence[int], pieces: int) -> Tiled:
        """In so many pieces of each share. Raises ``ValueError`` where that cannot be."""
        if not tensor.dim() or sum(shares) != tensor.shape[0]:
            raise ValueError(f"no shares {list(shares)} of a tensor {list(tensor.shape)}")
        return cls(tensor, memory(tensor), tiles_of(tuple(shares), pieces))

    def rows(self, tile: Tile) -> torch.Tensor:
        """A tile's numbers, ``[n]``."""
        return self.tensor[tile.begin : tile.end].view(-1)

    def bytes(self, tile: Tile) -> memoryview:
        """A tile's memory."""
        row = len(self.memory) // self.tensor.shape[0]
        return self.memory[tile.begin * row : tile.end * row]


def check_summed(tensor: torch.Tensor) -> None:
    """Raises ``ValueError`` where tensors of this dtype are not summed."""
    if tensor.dtype not in SUMMED:
        raise ValueError(f"no sums of {tensor.dtype}, only of {', '.join(map(str, SUMMED))}")


@torch.inference_mode()
def sum_in_order(parts: list[torch.Tensor], into: torch.Tensor) -> None:
    """``into = ((parts[0] + parts[1]) + parts[2]) + …``, where ``into`` may be one of them; the others are used up."""
    first, second, *rest = (part.view(-1) for part in parts)
    target = into.view(-1)
    for begin in range(0, len(target), _SERIAL):
        piece = slice(begin, begin + _SERIAL)
        # Into whichever of the two is not wanted any more, as long as parts are left that may lie in ``into``.
        total = second[piece] if rest and parts[0] is into else first[piece]
        torch.add(first[piece], second[piece], out=total if rest else target[piece])
        for number, part in enumerate(rest, 1):
            torch.add(total, part[piece], out=target[piece] if number == len(rest) else total)
