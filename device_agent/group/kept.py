"""The layers that a member has in memory, from one plan to the next: what the next has too is not read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        self._kinds: dict[int, tuple[bool, bool]] = {}

    def loaded_bytes(self, digest: str, dtype: str) -> int:
        """Bytes that a plan for this model can use again, or have freed for its own."""
        return sum(each.loaded_bytes for each in self._held.values()) if self._model == (digest, dtype) else 0

    def load(
        self,
        checkpoint: Checkpoint,
        digest: str,
        dtype: str,
        layers: Sequence[Layer],
        first: int,
        place: int,
        check: Callable[[], object] = lambda: None,
    ) -> list[HeldLayer]:
        """The layers of a plan, which are the model's from ``first`` on, as far as the member at ``place`` has them.

        What they have no use for is forgotten first. ``check`` is called before each layer that is read, and may raise
        what ends it. Raises ``BadCheckpoint``.
        """
        if self._model != (digest, dtype):
            self._model, self._held = (digest, dtype), {}
        same = {
            number: HeldLayer(layer, held.pieces, held.blocks, held.label)
            for number, layer in enumerate(layers, first)
            if (held := self._held.get(number)) is not None
            and held.pieces == tuple(pieces_of(layer, place, checkpoint.spec))
            and self._kinds[number] == _kind(layer, place)
        }
        self._kinds = {number: _kind(layer, place) for number, layer in enumerate(layers, first)}
        self._held, self.reused = same, sum(bool(each.blocks) for each in same.values())
        of: torch.dtype = getattr(torch, dtype)
        for number, layer in enumerate(layers, first):
            if number not in self._held:
                check()
                self._held[number] = HeldLayer.load(checkpoint, layer, number, place, of)
        return [self._held[first + number] for number in range(len(layers))]


def _kind(layer: Layer, place: int) -> tuple[bool, bool]:
    """How a member's weights of a layer are held beside what they are, see ``HeldLayer.load``: where rows are shared Q
    is apart from K and V, and for Eq. 8 all are plain."""
    return isinstance(layer, ByRows), isinstance(layer, ByRows) and layer.reorders(place)
