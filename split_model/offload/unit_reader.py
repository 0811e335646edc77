"""What a loader's thread does: units from their files to where they multiply, by way of a decoder what is coded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter

from split_model.offload.coding import Damaged
from split_model.offload.decoder import Decoder
from split_model.offload.errors import LoaderClosed, ReadFailed
from split_model.offload.file_pieces import SCRATCH_BYTES, Piece
from split_model.offload.landing import Landing
from split_model.offload.load_counts import LoadCounts
from split_model.offload.slots import Slot
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

    def __init__(self, store: UnitStore, landing: Landing, widens: bool = False) -> None:
        """landing: of all units. widens: see `Decoder`."""
        self.closed = threading.Event()
        self.alive_at = monotonic()
        self.counts = LoadCounts()
        self._store, self._landing = store, landing
        self._decoder = Decoder(widens) if store.coded else None
        self.nbytes = SCRATCH_BYTES if self._decoder is not None else 0
        self._damaged: list[Unit] = []
        self._counting = threading.Lock()

    def fill(self, slot: Slot, filled: Filled) -> None:
        """Reads a slot's unit, as long as somebody will use it; its file is made anew where it is missing or
        unsound."""
        unit = slot.unit
        self.alive_at = monotonic()
        while self._damaged:
            self._store.discard(self._damaged.pop())
        failed: list[Exception] = []
        try:
            for piece in self._store.pieces(unit, self._is_alive):
                if self.closed.is_set() or slot.dropped:
                    break
                start = slot.starts[piece.matrix] + piece.start
                into, buffer = self._landing.room(start, piece.size)
                landed = partial(self._landing.landed, buffer, start, piece.size, slot.behind)
                try:
                    self._read_piece(unit, piece, into, failed, landed)
                except BaseException:
                    self._landing.failed(buffer)
                    raise
        except Exception as caught:  # Whoever uses the unit has it.
            failed.append(caught)
        self._then(lambda: filled(failed[0] if failed else None))

    def _then(self, call: Callable[[], object]) -> None:
        """Behind all pieces so far."""
        if self._decoder is None:
            call()
        else:
            self._decoder.then(call)

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

    def _read_piece(
        self, unit: Unit, piece: Piece, into: memoryview, failed: list[Exception], landed: Callable[[], object]
    ) -> None:
        if piece.coded:
            self._read_coded(unit, piece, into, failed, landed)
        else:
            self._read(unit, piece.at, into)
            self._then(landed)

    def _read_coded(
        self, unit: Unit, piece: Piece, into: memoryview, failed: list[Exception], landed: Callable[[], object]
    ) -> None:
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
            landed()

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
