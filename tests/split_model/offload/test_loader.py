"""Units come in any order of use, stay while they are held, and whoever computes with the wrong ones is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed_units import loading, units_of

from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.offload import loader as loader_module
from split_model.offload.errors import DiskSilent, LoaderClosed
from split_model.offload.layout import Cut, unit_bytes
from split_model.offload.lent import LentMatrix
from split_model.offload.loader import Loader
from split_model.offload.store import Progress, UnitStore
from split_model.offload.units import Unit

UNITS = units_of(4)


@pytest.fixture
def checkpoint(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """Of which a block keeps matrices as they lie, so that they can be read."""
    monkeypatch.setattr("split_model.matrix.packs", lambda *of: False)
    return Checkpoint.open(tiny)


def matrices(checkpoint: Checkpoint, unit: Unit) -> list[torch.Tensor]:
    """As they are in a block that keeps them."""
    block = Block(checkpoint, unit.layer, torch.float32)
    if unit.half == "mlp":
        return [block._wide.weight, block._down.weight]
    return [block.qkv.matrices[0].weight, block._output.weight]


def lent(loader: Loader) -> dict[Unit, list[LentMatrix]]:
    return {unit: loader.matrices(unit, [None, None]) for unit in loader.units}


@pytest.fixture
def wanted(checkpoint: Checkpoint) -> Iterator[dict[Unit, list[torch.Tensor]]]:
    yield {unit: matrices(checkpoint, unit) for unit in UNITS}


@pytest.mark.parametrize("ahead", [True, False])
def test_any_order_of_uses_has_the_right_weights(
    checkpoint: Checkpoint, wanted: dict[Unit, list[torch.Tensor]], ahead: bool
) -> None:
    """Passes that stop half-way, begin in the middle, or go backwards; rings from one unit to more than all of them."""

    @settings(max_examples=40)
    @given(st.lists(st.sampled_from(UNITS), max_size=25), st.sampled_from([1, 1.3, 2, 3.5, 20]))
    def check(uses: list[Unit], rings: float) -> None:
        with loading(checkpoint, UNITS, rings=rings, ahead=ahead) as loader:
            found = lent(loader)
            for unit in uses:
                with loader.using(unit):
                    for matrix, right in zip(found[unit], wanted[unit], strict=True):
                        assert torch.equal(matrix.weight, right)
                with pytest.raises(RuntimeError, match=f"layer {unit.layer} is not in memory"):
                    found[unit][0](torch.zeros(1, checkpoint.spec.hidden_size))

    check()


def test_the_ring_is_read_ahead_into_the_next_pass(checkpoint: Checkpoint) -> None:
    """Behind the last unit of a pass the first ones are there already, before anybody asks."""
    with loading(checkpoint, UNITS, rings=3) as loader:
        for unit in UNITS:
            with loader.using(unit):
                pass
        sizes = [unit_bytes(checkpoint.spec, unit, Cut(), torch.float32) for unit in UNITS]
        deadline = time.monotonic() + 10
        while loader.counts.bytes_read < sum(sizes) + sum(sizes[:2]) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert loader.counts.bytes_read >= sum(sizes) + sum(sizes[:2])


def test_without_reading_ahead_only_what_is_asked_for_is_read(checkpoint: Checkpoint) -> None:
    """As a pipeline without prefetching has it."""
    with loading(checkpoint, UNITS, rings=4, ahead=False) as loader:
        time.sleep(0.05)
        assert loader.counts.bytes_read == 0
        with loader.using(UNITS[2]):
            pass
        time.sleep(0.05)
        assert loader.counts.bytes_read == unit_bytes(checkpoint.spec, UNITS[2], Cut(), torch.float32)


def test_what_is_held_is_read_once_for_several_rounds(checkpoint: Checkpoint) -> None:
    """Three micro-batches through two units; then the rest of the pass; nothing is read twice."""
    with loading(checkpoint, UNITS, rings=3) as loader:
        found = lent(loader)
        for _ in range(2):
            with loader.holding(UNITS[:2]):
                for _ in range(3):
                    for unit in UNITS[:2]:
                        with loader.using(unit):
                            assert found[unit][0].weight is not None
                assert found[UNITS[0]][0].weight is not None
            for unit in UNITS[2:]:
                with loader.using(unit):
                    pass
        read = loader.counts.bytes_read
        sizes = [unit_bytes(checkpoint.spec, unit, Cut(), torch.float32) for unit in UNITS]
        assert 2 * sum(sizes) <= read <= 2 * sum(sizes) + loader.nbytes


def test_what_has_no_room_together_is_not_held(checkpoint: Checkpoint) -> None:
    """It would wait for itself."""
    with (
        loading(checkpoint, UNITS, rings=2) as loader,
        pytest.raises(ValueError, match="no room for 4 units"),
        loader.holding(UNITS[:4]),
    ):
        pass


def test_a_ring_below_the_largest_unit_and_units_named_twice_are_refused(checkpoint: Checkpoint, cache: Path) -> None:
    """Before anything is repacked. And one that is not streamed cannot be used."""
    with pytest.raises(ValueError, match="no room for a unit"):
        Loader.open(checkpoint, UNITS, torch.float32, 4096)
    with pytest.raises(ValueError, match="twice"):
        Loader.open(checkpoint, [*UNITS, UNITS[0]], torch.float32, 1 << 20)
    assert not cache.exists()
    with (
        loading(checkpoint, UNITS[:2]) as loader,
        pytest.raises(ValueError, match="none of the units"),
        loader.using(UNITS[5]),
    ):
        pass


def test_another_order_is_followed_from_the_next_use_on(checkpoint: Checkpoint) -> None:
    """More units than before, which are repacked now, and in another order."""
    with loading(checkpoint, UNITS[:2]) as loader:
        with loader.using(UNITS[0]):
            pass
        other = [UNITS[5], UNITS[0], UNITS[2]]
        loader.follow(other)
        found = lent(loader)
        for unit in other * 2:
            with loader.using(unit):
                assert torch.equal(found[unit][1].weight, matrices(checkpoint, unit)[1])


class StuckStore(UnitStore):
    """A disk that answers nothing from the third piece on, until the test ends."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint, torch.float32, lambda layer: Cut())
        self.goes_on = threading.Event()
        self._left = 2

    def read(self, unit: Unit, offset: int, into: memoryview, progress: Progress | None = None) -> None:
        """As of a disk that hangs."""
        self._left -= 1
        if self._left < 0:
            self.goes_on.wait(30)
        super().read(unit, offset, into, progress)


@pytest.fixture
def stuck(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    store = StuckStore(checkpoint)
    store.make(UNITS)
    loader = Loader(store, UNITS, torch.float32, 1 << 18)
    yield loader
    store.goes_on.set()
    loader.close()


def test_a_disk_that_hangs_fails_the_use_and_not_the_next(stuck: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name of the unit; when it answers again, the next pass is right."""
    monkeypatch.setattr(loader_module, "SILENT_S", 0.2)
    with stuck.using(UNITS[0]):
        pass
    with pytest.raises(DiskSilent, match="mlp of layer 0") as silent, stuck.using(UNITS[1]):
        pass
    assert silent.value.unit == UNITS[1] and silent.value.path.exists()
    assert isinstance(stuck._store, StuckStore)
    stuck._store.goes_on.set()
    monkeypatch.undo()
    for unit in UNITS:
        with stuck.using(unit):
            pass


def test_closing_ends_who_waits(stuck: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, though the disk hangs; uses afterwards are refused, and a second close does nothing."""
    monkeypatch.setattr(loader_module, "CLOSE_WITHIN_S", 0.1)
    with stuck.using(UNITS[0]):
        pass
    closing = threading.Timer(0.1, stuck.close)
    closing.start()
    began = time.monotonic()
    with pytest.raises(LoaderClosed), stuck.using(UNITS[1]):
        pass
    assert time.monotonic() - began < 20
    with pytest.raises(LoaderClosed), stuck.using(UNITS[0]):
        pass
    stuck.close()
    closing.join()
