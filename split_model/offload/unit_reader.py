"""What a loader's thread does: units from their files to where they multiply, by way of a decoder what is coded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter

from split_model.offload.coding import Damaged
from split_model.offload.decoder import Decoder
from split_model.offload.errors import LoaderClosed, ReadFailed
from split_model.offload.load_counts import LoadCounts
from split_model.offload.pieces import SCRATCH_BYTES, Piece
from split_model.offload.store import UnitStore
from split_model.offload.units import Unit

Filled = Callable[[Exception | None], object]
"""Called when a unit is there, or with why it is not: on the reader's thread, or on the decoder's."""


class UnitReader:
    """One thread reads; any may look at the attributes, and end it by `closed`.

    Attributes:
        closed: set by whoever wants nothing more.
        alive_at: when something has come from the disk last, by `monotonic`.
        counts: see `LoadCounts`; its own part; `count` adds others'.
        nbytes: that it takes besides.
    """

    def __init__(self, store: UnitStore) -> None:
        self.closed = threading.Event()
        self.alive_at = monotonic()
        self.counts = LoadCounts()
        self._store = store
        self._decoder = Decoder() if store.coded else None
        self.nbytes = SCRATCH_BYTES if self._decoder is not None else 0
        self._damaged: list[Unit] = []
        self._counting = threading.Lock()

    def fill(
        self, unit: Unit, starts: Sequence[int], memory: memoryview, wanted: Callable[[], bool], filled: Filled
    ) -> None:
        """Reads a unit; its file is made anew where it is missing or unsound.

        starts: of its matrices in `memory`. wanted: whether it still is, asked before each piece.
        """
        self.alive_at = monotonic()
        while self._damaged:
            self._store.discard(self._damaged.pop())
        failed: list[Exception] = []
        try:
            for piece in self._store.pieces(unit, self._is_alive):
                if self.closed.is_set() or not wanted():
                    break
                start = starts[piece.matrix] + piece.start
                into = memory[start : start + piece.size]
                if piece.coded:
                    self._read_coded(unit, piece, into, failed)
                else:
                    self._read(unit, piece.at, into)
        except Exception as caught:  # Whoever uses the unit has it.
            failed.append(caught)
        if self._decoder is None:
            filled(failed[0] if failed else None)
        else:
            self._decoder.then(lambda: filled(failed[0] if failed else None))

    def check_open(self, done: int = 0, of: int = 0) -> None:
        """Raises LoaderClosed, for whoever makes files or waits to."""
        if self.closed.is_set():
            raise LoaderClosed("the loader is closed")

    def close(self) -> None:
        """Behind the last unit, on the reader's thread."""
        self._store.close()
        if self._decoder is not None:
            self._decoder.close()

    def _is_alive(self, done: int = 0, of: int = 0) -> None:
        self.check_open()
        self.alive_at = monotonic()

    def _read_coded(self, unit: Unit, piece: Piece, into: memoryview, failed: list[Exception]) -> None:
        assert self._decoder is not None
        room = self._decoder.room()
        try:
            self._read(unit, piece.at, room[: piece.length])
        except BaseException:
            self._decoder.give_back(room)
            raise

        def decoded(seconds: float, damage: Exception | None) -> None:
            self.count(LoadCounts(decoding_s=seconds))
            if isinstance(damage, Damaged):
                self._damaged.append(unit)
            if damage is not None:
                what = "is damaged" if isinstance(damage, Damaged) else "cannot be decoded"
                failed.append(ReadFailed(unit, self._store.path(unit), f"it {what}: {damage}"))

        self._decoder.decode(room, piece, into, decoded)

    def _read(self, unit: Unit, offset: int, into: memoryview) -> None:
        began = perf_counter()
        self._store.read(unit, offset, into, self._is_alive)
        self.count(LoadCounts(bytes_read=len(into), reading_s=perf_counter() - began))
        self.alive_at = monotonic()

    def count(self, more: LoadCounts) -> None:
        """Adds to the counts, on any thread."""
        with self._counting:
            self.counts += more
