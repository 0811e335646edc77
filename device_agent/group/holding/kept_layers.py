"""The layers that a member has in memory, from one plan to the next: what the next has too is not read again.

What a plan has read from the disk at each use has a loader, which lives as long as there are plans that want the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from device_agent.group.holding.handed import HandedOver
from device_agent.group.holding.held import HeldLayer
from device_agent.group.holding.pieces import pieces_of
from device_agent.group.holding.streaming import NOTHING, Streaming
from device_agent.planning.plan import ByRows, Layer
from split_model.checkpoint import Checkpoint
from split_model.host_memory import give_back
from split_model.offload.layout import Cut
from split_model.offload.loader import Loader
from split_model.offload.units import Unit


class KeptLayers:
    """Of one model at a time. For one thread at a time.

    Attributes:
        device: where they are.
        reused: how many of the layers loaded last were there before.
        loader: of what the plan loaded last streams, if anything.
        handed: sessions' keys and values, where one plan follows another.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.reused = 0
        self.loader: Loader | None = None
        self.handed = HandedOver()
        self._model: tuple[str, str] = ("", "")
        self._held: dict[int, HeldLayer] = {}
        self._kinds: dict[int, tuple[bool, bool]] = {}
        self._streaming = NOTHING

    def loaded_bytes(self, digest: str, dtype: str) -> int:
        """Bytes that a plan for this model can use again, or have freed for its own."""
        if self._model != (digest, dtype):
            return 0
        buffers = 0 if self.loader is None else self.loader.nbytes
        return buffers + sum(each.loaded_bytes for each in self._held.values())

    def close(self) -> None:
        """Forget all of it, and read nothing more; takes seconds at most. No thread computes with it any more."""
        self._held, self._kinds, self._streaming = {}, {}, NOTHING
        self.handed.put(None, {})
        if self.loader is not None:
            self.loader.close()
            self.loader = None
        self._give_back()

    def load(
        self,
        checkpoint: Checkpoint,
        digest: str,
        dtype: str,
        layers: Sequence[Layer],
        first: int,
        place: int,
        check: Callable[[], object] = lambda: None,
        streaming: Streaming = NOTHING,
    ) -> list[HeldLayer]:
        """The layers of a plan, which are the model's from ``first`` on, as far as the member at ``place`` has them.

        What they have no use for is forgotten first. ``check`` is called before each layer that is read, and while what
        is streamed is repacked, once; it may raise what ends it. Raises ``BadCheckpoint``, ``OffloadError``.
        """
        if self._model != (digest, dtype):
            self.close()
            self._model = digest, dtype
        same = {
            number: replace(held, layer=layer)
            for number, layer in enumerate(layers, first)
            if (held := self._held.get(number)) is not None
            and held.pieces == tuple(pieces_of(layer, place, checkpoint.spec))
            and self._kinds[number] == _kind(layer, place)
            and self._streaming.of_layer(number) <= streaming.of_layer(number)
        }
        self._kinds = {number: _kind(layer, place) for number, layer in enumerate(layers, first)}
        self._held, self.reused = same, sum(bool(each.blocks) for each in same.values())
        of: torch.dtype = getattr(torch, dtype)
        self._give_back()
        self._open(checkpoint, of, streaming, check)
        for number, layer in enumerate(layers, first):
            if number not in self._held:
                check()
                self._held[number] = HeldLayer.load(checkpoint, layer, number, place, of, self.loader, self.device)
        return [self._held[first + number] for number in range(len(layers))]

    def stream(self, streaming: Streaming, check: Callable[[], object] = lambda: None) -> None:
        """From now on that is streamed, and no other unit: what was kept is let go of, and what comes to be kept has
        been taken out of the ring by ``keep``. While nothing is computed.

        ``check`` is called while files are made that nobody had time for before; it may raise what ends it. Raises
        ``OffloadError``."""
        assert self.loader is not None
        before = set(self._streaming.units)
        self.loader.follow(streaming.units, lambda done, of: check())
        for unit in streaming.units:
            if unit not in before:
                for block in self._held[unit.layer].blocks:
                    block.stream(unit.half, self.loader)
        self._streaming = streaming
        give_back()

    @property
    def streamed(self) -> tuple[Unit, ...]:
        """What is streamed now."""
        return self._streaming.units

    def keep(self, unit: Unit) -> None:
        """A unit that is in the ring now, since it is used, stays in memory from now on."""
        for block in self._held[unit.layer].blocks:
            block.keep(unit.half)
        self._streaming = replace(self._streaming, units=tuple(each for each in self._streaming.units if each != unit))

    def _give_back(self) -> None:
        """What was let go of: to the system, or to other processes on the same GPU."""
        give_back()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _open(
        self, checkpoint: Checkpoint, dtype: torch.dtype, streaming: Streaming, check: Callable[[], object]
    ) -> None:
        """The loader of a plan, and what was kept let go of as far as the plan streams it."""
        if self.loader is None or self._streaming != streaming:
            if self.loader is not None:
                self.loader.close()
            before = self._streaming
            self.loader, self._streaming = None, NOTHING
            give_back()  # The ring was; the next one is taken now.
            if streaming.ring_bytes:
                size, how = streaming.ring_bytes, (streaming.ahead, streaming.coded)
                cut = lambda layer: streaming.cuts.get(layer, Cut())  # noqa: E731
                units, told = streaming.units, lambda done, of: check()
                try:
                    self.loader = Loader.open(checkpoint, units, dtype, size, cut, told, *how)
                except BaseException:  # What the closed one lent is nowhere now.
                    self._held = {at: each for at, each in self._held.items() if not before.of_layer(at)}
                    raise
                for unit in streaming.units:
                    for block in self._held[unit.layer].blocks if unit.layer in self._held else ():
                        block.stream(unit.half, self.loader)
            self._streaming = streaming


def _kind(layer: Layer, place: int) -> tuple[bool, bool]:
    """How a member's weights of a layer are held beside what they are, see ``HeldLayer.load``: where rows are shared Q
    is apart from K and V, and for Eq. 8 all are plain."""
    return isinstance(layer, ByRows), isinstance(layer, ByRows) and layer.reorders(place)
