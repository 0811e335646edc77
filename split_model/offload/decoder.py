"""Decodes what a loader has read, on a thread of its own, while the loader reads on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from split_model.offload.buffers import aligned
from split_model.offload.coding import BLOCK_WORDS, decode, decode_wide
from split_model.offload.file_pieces import CODED_FROM_BYTES, Piece, most_share


class Decoder:
    """Piece by piece, in order: one is decoded while the next is read. All of it takes `SCRATCH_BYTES`."""

    def __init__(self, widens: bool = False) -> None:
        """widens: whether what is coded is bfloat16 and becomes float32."""
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        for _ in range(2):
            self._free.put(aligned(int(CODED_FROM_BYTES * most_share(widens))).numpy().data)
        self._between = np.empty(BLOCK_WORDS // 2, "<u2")
        self._block = np.empty(BLOCK_WORDS, "<u2") if widens else None
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
                self._decode(np.frombuffer(room[: piece.length], np.uint8), into, piece.place)
            except Exception as error:  # Whoever uses the unit has it.
                damage = error
            self._free.put(room)
            done(perf_counter() - began, damage)

        self._thread.submit(run)

    def _decode(self, coded: NDArray[np.uint8], into: memoryview, place: int) -> None:
        if self._block is None:
            decode(coded, np.frombuffer(into, "<u2"), self._between, place)
        else:
            decode_wide(coded, np.frombuffer(into, "<u4"), self._block, self._between, place)

    def then(self, call: Callable[[], object]) -> None:
        """Calls it, on the decoder's thread, when all pieces so far are decoded."""
        self._thread.submit(call)

    def close(self) -> None:
        """Ends the thread behind what it has to do, and waits for that: milliseconds."""
        self._thread.shutdown()
