"""Loaders over tiny models, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from split_model.checkpoint import Checkpoint
from split_model.offload.layout import Cut, unit_bytes
from split_model.offload.loader import Loader
from split_model.offload.units import Half, Unit

WHOLE = Cut()

HALVES: tuple[Half, Half] = ("attention", "mlp")


def units_of(layers: int) -> list[Unit]:
    """Both halves of each of the first layers, as they are used."""
    return [Unit(layer, half) for layer in range(layers) for half in HALVES]


@contextmanager
def loading(
    checkpoint: Checkpoint,
    units: Sequence[Unit],
    dtype: torch.dtype = torch.float32,
    rings: float = 2,
    cut: Cut = WHOLE,
    ahead: bool = True,
    coded: bool = False,
    device: torch.device | str = "cpu",
) -> Iterator[Loader]:
    """rings: the ring's size in units of the largest."""
    largest = max(unit_bytes(checkpoint.spec, unit, cut, dtype) for unit in units)
    how: dict[str, Any] = {"ahead": ahead, "coded": coded, "device": device}
    loader = Loader.open(checkpoint, units, dtype, int(rings * largest), lambda layer: cut, **how)
    try:
        yield loader
    finally:
        loader.close()
