"""Reads units from the disk ahead of their use, into a ring of buffers, on a thread of its own.

    loader = Loader.open(checkpoint, units, torch.bfloat16, ring_bytes=2 << 30)
    with loader.using(Unit(7, "mlp")):
        ...                           # matrices of that unit multiply; behind it their buffers are free
    loader.close()

Units are used in one order, again and again. The reader goes on over its end, so that the first ones are there when
the next pass begins; of a model with an encoder the decoder's, which are used again for each token. It reads with calls
that let go of the interpreter, and runs nothing of torch, unless a file that has become unsound is made anew. What is
coded is decoded behind it, see `decoder`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import Final

import torch

from split_model.checkpoint import Checkpoint
from split_model.offload.buffers import view_of
from split_model.offload.errors import DiskSilent
from split_model.offload.landing import Landing
from split_model.offload.layout import Cut
from split_model.offload.lent import LentMatrix
from split_model.offload.load_counts import LoadCounts
from split_model.offload.ring import Ring
from split_model.offload.slots import Slot, Slots
from split_model.offload.store import CutOf, Progress, UnitStore
from split_model.offload.unit_reader import UnitReader
from split_model.offload.units import Unit

SILENT_S: Final = 30.0
"""A disk from which not one piece comes for so long is taken for dead."""

CLOSE_WITHIN_S: Final = 5.0
"""So long a close waits for the piece that is being read; a disk that hangs keeps the thread, and its buffers."""


class Loader:
    """Of one stack, or one member's layers: one thread at a time uses its units; any may look at its counts."""

    def __init__(
        self,
        store: UnitStore,
        units: Sequence[Unit],
        dtype: torch.dtype,
        ring_bytes: int,
        ahead: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        """units: in the order of use, each once, none larger than the ring. ahead: whether they are read before they
        are asked for; else who uses one waits for all of it. device: where they are used."""
        self._store, self._dtype = store, dtype
        self._device = torch.device(device)
        self._landing = Landing(ring_bytes, self._device)
        self._used = self._landing.used()
        self._reader = UnitReader(store, self._landing, widens=dtype == torch.float32)
        self._slots = Slots(Ring(ring_bytes), units, ahead, self._again(units))
        self._lent: dict[Unit, list[LentMatrix]] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read_ahead, name="loader", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        checkpoint: Checkpoint,
        units: Sequence[Unit],
        dtype: torch.dtype,
        ring_bytes: int,
        cut: CutOf = lambda layer: Cut(),
        progress: Progress | None = None,
        ahead: bool = True,
        coded: bool = False,
        device: torch.device | str = "cpu",
    ) -> Loader:
        """Repacks what was never read in this way, which is long for a large model, and begins to read.

        coded: whether units lie in fewer bytes on the disk, see `coding`, where they can. device: as of `Loader`.

        Raises BadCheckpoint, DiskFull, ReadFailed; ValueError unless each unit is there once and fits the ring.
        """
        store = UnitStore(checkpoint, dtype, cut, device, coded=coded)
        _check(store, units, ring_bytes)
        store.make(units, progress)
        return cls(store, units, dtype, ring_bytes, ahead, device)

    @property
    def units(self) -> tuple[Unit, ...]:
        """In the order of use."""
        return self._slots.order

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self._slots.ring.size + self._reader.nbytes

    @property
    def counts(self) -> LoadCounts:
        """See `LoadCounts`."""
        return self._reader.counts

    def matrices(self, unit: Unit, biases: Sequence[torch.Tensor | None]) -> list[LentMatrix]:
        """The matrices of a unit, in the order of `LayerParts.stacked`, with these biases. They multiply while it is
        used; of a unit whose matrices were asked for before, only the new ones do."""
        shapes = [matrix.shape for matrix in self._store.matrices(unit)]
        self._lent[unit] = [
            LentMatrix(f"the {unit.half} of layer {unit.layer}", shape, bias, self._device)
            for shape, bias in zip(shapes, biases, strict=True)
        ]
        return self._lent[unit]

    @contextmanager
    def using(self, unit: Unit) -> Iterator[None]:
        """While inside, the matrices of `unit` multiply; entering waits until they are there. May be nested.

        Raises ReadFailed, and DiskSilent below it; later uses try again. LoaderClosed; ValueError for a unit that is
        none of `units`.
        """
        slot = self._take(unit)
        try:
            yield
        finally:
            self._give_back(slot)

    @contextmanager
    def holding(self, units: Sequence[Unit]) -> Iterator[None]:
        """While inside, what is used of `units`, which follow one another, stays for further uses.

        Raises ValueError where they have no room together.
        """
        rooms = [matrix.room for unit in units for matrix in self._store.matrices(unit)]
        if sum(rooms) + max(rooms, default=0) > self._slots.ring.size:
            raise ValueError(f"a ring of {self._slots.ring.size} bytes has no room for {len(units)} units at once")
        with self._changed:
            self._slots.held |= set(units)
        try:
            yield
        finally:
            with self._changed:
                for slot in self._slots.let_go(units):
                    self._take_back(slot)
                self._used = self._landing.used()
                self._changed.notify_all()

    def make(self, units: Sequence[Unit]) -> None:
        """Repacks what is new to the disk, for an order that may follow; on any thread. Raises as `open`."""
        self._store.make(units, self._reader.check_open)

    def check_room(self, units: Sequence[Unit]) -> None:
        """Raises DiskFull, or ReadFailed, where there is no room for the files of these units, for an order that may
        follow."""
        self._store.check_room(units)

    def follow(self, units: Sequence[Unit], progress: Progress | None = None) -> None:
        """Another order from the next use on; while none is used. Repacks what is new to the disk.

        progress: of that; it may raise what ends it. Raises as `open`.
        """
        _check(self._store, units, self._slots.ring.size)
        there = set(self.units)
        self._store.make([unit for unit in units if unit not in there], progress)
        with self._changed:
            self._lent = {unit: lent for unit, lent in self._lent.items() if unit in set(units)}
            self._slots.follow(units, self._again(units))
            self._changed.notify_all()

    def close(self) -> None:
        """Reads no more, waits for the reader a few seconds at most, and gives the memory back. Safe to call twice."""
        with self._changed:
            self._reader.closed.set()
            self._changed.notify_all()
        self._thread.join(CLOSE_WITHIN_S)
        if not self._thread.is_alive():
            self._landing.close()

    def _again(self, units: Sequence[Unit]) -> int:
        """The first that is a decoder's; 0 where there is none, or all are."""
        return next((place for place, unit in enumerate(units) if unit.layer >= self._store.reader_layers), 0)

    # ---- whoever computes ----

    def _take(self, unit: Unit) -> Slot:
        began = perf_counter()
        with self._changed:
            slot = self._slots.next_of(unit)
            self._changed.notify_all()
            asked_at = monotonic()
            while slot is None or slot.state == "reading":
                self._reader.check_open()
                left = max(asked_at, self._reader.alive_at) + SILENT_S - monotonic()
                if left <= 0:
                    raise DiskSilent(unit, self._store.path(unit), f"nothing has come for {SILENT_S:.0f} s")
                self._changed.wait(left)
                slot = self._slots.next_of(unit)
            self._reader.check_open()
            self._reader.count(LoadCounts(waited_s=perf_counter() - began, uses=1))
            if slot.error is not None:
                self._slots.drop_ahead()
                self._changed.notify_all()
                raise slot.error
            first = self._slots.take(slot)
        if first:
            self._landing.use(slot.ready)
            for lent, stored, start in zip(
                self._lent.get(unit, ()), self._store.matrices(unit), slot.starts, strict=False
            ):
                lent.lend(view_of(self._landing.memory, start, stored, self._dtype))
        return slot

    def _give_back(self, slot: Slot) -> None:
        with self._changed:
            if self._slots.give_back(slot):
                self._take_back(slot)
                self._used = self._landing.used()
                self._changed.notify_all()

    def _take_back(self, slot: Slot) -> None:
        for lent in self._lent.get(slot.unit, ()):
            lent.take_back()

    # ---- the reader ----

    def _read_ahead(self) -> None:
        try:
            while (slot := self._begin()) is not None:
                self._fill(slot)
        finally:
            self._reader.close()

    def _begin(self) -> Slot | None:
        """The next slot to fill; None when closed."""
        with self._changed:
            while not self._reader.closed.is_set():
                slot = self._slots.begin(self._rooms)
                if slot is not None:
                    slot.behind = self._used
                    return slot
                self._changed.wait()
            return None

    def _rooms(self, unit: Unit) -> list[int]:
        return [matrix.room for matrix in self._store.matrices(unit)]

    def _fill(self, slot: Slot) -> None:
        def filled(error: Exception | None) -> None:
            slot.ready = self._landing.ready()
            with self._changed:
                self._slots.filled(slot, error)
                self._changed.notify_all()

        self._reader.fill(slot, filled)


def _check(store: UnitStore, units: Sequence[Unit], ring_bytes: int) -> None:
    """Raises ValueError unless each unit is there once and fits the ring."""
    if len(set(units)) != len(units):
        raise ValueError("a unit is used twice in a pass; name each once")
    largest = max((sum(each.room for each in store.matrices(unit)) for unit in units), default=0)
    if largest > ring_bytes:
        raise ValueError(f"a ring of {ring_bytes} bytes has no room for a unit of {largest}")
