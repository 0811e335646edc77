"""Which layers of a stack are in memory: all of them, or some while the others stay on the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from split_model.blocks import Block
from split_model.host_memory import give_back


class Blocks(Sequence[Block]):
    """The layers of a stack, numbered from 0 within it.

    A layer that is not in memory when a run comes to it is read for it and dropped behind it. Who knows better which to
    keep, and when to begin to read the next, says so by `load` and `drop`: on any thread, the layers being different
    ones; a layer that a run computes must not be dropped.
    """

    def __init__(self, blocks: Sequence[Block | None], read: Callable[[int], Block] | None = None) -> None:
        """blocks: None for a layer that is not in memory, which `read` then gives; it may be called more than once."""
        assert read is not None or None not in blocks
        self._held = list(blocks)
        self._read = read
        self._locks = [threading.Lock() for _ in blocks]

    def load(self, layer: int) -> Block:
        """Reads a layer, unless it is in memory, where it stays. Raises BadCheckpoint."""
        with self._locks[layer]:
            block = self._held[layer]
            if block is None:
                assert self._read is not None
                block = self._held[layer] = self._read(layer)
            return block

    def drop(self, layer: int) -> None:
        """Gives a layer's memory back, on a CPU to the system; it can be read again. Nothing where it is not there."""
        with self._locks[layer]:
            block, self._held[layer] = self._held[layer], None
        if block is not None:
            block.drop()
            give_back()

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights in memory now."""
        return sum(block.loaded_bytes for block in self._held if block is not None)

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, index: int) -> Block: ...

    @overload
    def __getitem__(self, index: slice) -> list[Block]: ...

    def __getitem__(self, index: int | slice) -> Block | list[Block]:
        """As `load` for each."""
        numbers = range(len(self))[index]
        return self.load(numbers) if isinstance(numbers, int) else [self.load(number) for number in numbers]

    def __iter__(self) -> Iterator[Block]:
        """One after the other, as a run needs them."""
        return self._passing() if None in self._held else iter(self._held)  # type: ignore[arg-type]

    def _passing(self) -> Iterator[Block]:
        for layer, block in enumerate(self._held):
            if block is not None:
                yield block
                continue
            try:
                yield self.load(layer)
            finally:
                self.drop(layer)
