"""Decodes what a loader has read, on a thread of its own, while the loader reads on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from time import perf_counter

import numpy as np

from split_model.offload.buffers import aligned
from split_model.offload.coding import BLOCK_WORDS, decode
from split_model.offload.pieces import MOST_CODED_BYTES, Piece


class Decoder:
    """Piece by piece, in order: one is decoded while the next is read. All of it takes `SCRATCH_BYTES`."""

    def __init__(self) -> None:
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        for _ in range(2):
            self._free.put(aligned(MOST_CODED_BYTES).numpy().data)
        self._between = np.empty(BLOCK_WORDS // 2, "<u2")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoder")

    def room(self) -> memoryview:
        """Where the next piece is to be read to; waits until one of two is free. Goes to `decode` or `give_back`."""
        return self._free.get()

    def give_back(self, room: memoryview) -> None:
        """Nothing was read to there."""
        self._free.put(room)

    def decode(
        self, room: memoryview, piece: Piece, into: memoryview, done: Callable[[float, Exception | None], object]
    ) -> None:
        """Begins to decode a piece that was read to `room`, which is free afterwards. done: called on the decoder's
        thread with the seconds that it took, and what is wrong with the piece."""

        def run() -> None:
            began = perf_counter()
            damage: Exception | None = None
            try:
                coded = np.frombuffer(room[: piece.length], np.uint8)
                decode(coded, np.frombuffer(into, "<u2"), self._between, piece.place)
            except Exception as error:  # Whoever uses the unit has it.
                damage = error
            self._free.put(room)
            done(perf_counter() - began, damage)

        self._thread.submit(run)

    def then(self, call: Callable[[], object]) -> None:
        """Calls it, on the decoder's thread, when all pieces so far are decoded."""
        self._thread.submit(call)

    def close(self) -> None:
        """Ends the thread behind what it has to do, and waits for that: milliseconds."""
        self._thread.shutdown()
