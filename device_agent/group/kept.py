"""The layers that a member has in memory, from one plan to the next: what the next has too is not read again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from device_agent.group.held import HeldLayer
from device_agent.group.pieces import pieces_of
from device_agent.planning.plan import ByRows, Layer
from split_model.checkpoint import Checkpoint


class KeptLayers:
    """Of one model at a time. For one thread at a time.

    Attributes:
        reused: how many of the layers loaded last were there before.
    """

    def __init__(self) -> None:
        self.reused = 0
        self._model: tuple[str, str] = ("", "")
        self._held: dict[int, HeldLayer] = {}

    def loaded_bytes(self, digest: str, dtype: str) -> int:
        """Bytes that a plan for this model can use again, or have freed for its own."""
        return sum(each.loaded_bytes for each in self._held.values()) if self._model == (digest, dtype) else 0

    def load(
        self, checkpoint: Checkpoint, digest: str, dtype: str, layers: Sequence[Layer], first: int, place: int
    ) -> list[HeldLayer]:
        """The layers of a plan, which are the model's from ``first`` on, as far as the member at ``place`` has them.

        What they have no use for is forgotten first. Raises ``BadCheckpoint``.
        """
        if self._model != (digest, dtype):
            self._model, self._held = (digest, dtype), {}
        same = {
            number: HeldLayer(layer, held.pieces, held.blocks, held.label)
            for number, layer in enumerate(layers, first)
            if (held := self._held.get(number)) is not None and _alike(held, layer, place, checkpoint)
        }
        self._held, self.reused = same, sum(bool(each.blocks) for each in same.values())
        of: torch.dtype = getattr(torch, dtype)
        for number, layer in enumerate(layers, first):
            if number not in self._held:
                self._held[number] = HeldLayer.load(checkpoint, layer, number, place, of)
        return [self._held[first + number] for number in range(len(layers))]


def _alike(held: HeldLayer, layer: Layer, place: int, checkpoint: Checkpoint) -> bool:
    """Whether the weights of a layer are held as another plan wants them: the same pieces, and Q apart from K and V
    where rows are shared."""
    pieces = tuple(pieces_of(layer, place, checkpoint.spec))
    return held.pieces == pieces and isinstance(held.layer, ByRows) == isinstance(layer, ByRows)
