"""The memory of a ring: where pieces land that come from the disk, and where matrices are multiplied.

On the CPU both are one: a disk writes to where it is multiplied. Of another device's ring a disk knows nothing: pieces
are read into a few buffers of the host, pinned where it has CUDA, and copied from there beside what is computed.
"""

from __future__ import annotations

from queue import SimpleQueue

import torch

from split_model.device import CopyStream, Mark
from split_model.offload.buffers import aligned, first_aligned
from split_model.offload.file_pieces import PIECE_BYTES
from split_model.offload.layout import ALIGNMENT

BUFFERS = 3
"""One is read into, one is copied, and one is decoded where that is done."""


class Landing:
    """Of one ring. One thread at a time asks for room, and what has come is told in the same
    order, perhaps on another.

    Attributes:
        memory: uint8 [nbytes], on the device.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._copies: CopyStream | None = None
        if device.type == "cpu":
            self.memory = aligned(nbytes)
            self._bytes = self.memory.numpy().data
            return
        self._copies = CopyStream(device)
        self.memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        rooms = [first_aligned(self._copies.host_memory(PIECE_BYTES + ALIGNMENT), PIECE_BYTES) for _ in range(BUFFERS)]
        self._rooms: SimpleQueue[tuple[torch.Tensor, Mark]] = SimpleQueue()
        for room in rooms:
            self._rooms.put((room, None))
        self._last: Mark = None

    def room(self, start: int, size: int) -> tuple[memoryview, torch.Tensor | None]:
        """Where a piece is to be read to that belongs to `start` of the ring, and the buffer that it is, if it is none
        of the ring's; waits until a copy from there is done."""
        if self._copies is None:
            return self._bytes[start : start + size], None
        buffer, copied = self._rooms.get()
        self._copies.wait(copied)
        return buffer.numpy().data[:size], buffer

    def landed(self, buffer: torch.Tensor | None, start: int, size: int, behind: Mark) -> None:
        """A piece is there. behind: when nobody uses what was in the ring before."""
        if self._copies is not None and buffer is not None:
            target = self.memory[start : start + size]
            self._last = self._copies.copy(buffer[:size], target, behind)
            self._rooms.put((buffer, self._last))

    def failed(self, buffer: torch.Tensor | None) -> None:
        """It will not be."""
        if buffer is not None:
            self._rooms.put((buffer, None))

    def ready(self) -> Mark:
        """When all pieces so far are in the ring."""
        return None if self._copies is None else self._last

    def used(self) -> Mark:
        """When all that was to be computed until now is."""
        return None if self._copies is None else self._copies.computed()

    def use(self, ready: Mark) -> None:
        """What is computed from now on comes behind that."""
        if self._copies is not None:
            self._copies.compute_behind(ready)

    def close(self) -> None:
        """Gives the memory back; no piece comes any more."""
        if self._copies is None:
            self._bytes = memoryview(b"")
        else:
            self._copies.wait(self._last)
        self.memory = torch.empty(0, dtype=torch.uint8)
