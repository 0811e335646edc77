"""Calibrations on this machine's disk, so that a model is calibrated once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from split_model.cache_folder import cache_folder
from split_model.pruning.calibration import STAGES, TEXTS, TOKENS, Calibration

VERSION = 1
"""Of how is calibrated."""


def kept_calibration(digest: str, dtype: str, make: Callable[[], Calibration]) -> Calibration:
    """The calibration of the model with that digest, made where none is kept that can be so.

    Raises what `make` does. A file that cannot be read or written costs only the time to make it again.
    """
    key = hashlib.sha256(f"{VERSION} {digest} {dtype} {TEXTS} {TOKENS} {STAGES}".encode()).hexdigest()[:32]
    path = cache_folder("pruning") / f"{key}.safetensors"
    found = _read(path)
    if found is None:
        found = make()
        with suppress(OSError):
            _write(path, found)
    return found


def _read(path: Path) -> Calibration | None:
    try:
        held = load_file(path)
        means, order = held["means"], [(int(layer), int(head)) for layer, head in held["order"].tolist()]
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None
    if means.dim() != 3 or means.dtype != torch.float32 or not means.isfinite().all():
        return None
    units = [(layer, head) for layer in range(means.shape[0]) for head in range(means.shape[1])]
    return Calibration(means, tuple(order)) if sorted(order) == units else None


def _write(path: Path, found: Calibration) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent)
    os.close(handle)
    try:
        save_file({"means": found.means.contiguous(), "order": torch.tensor(found.order)}, name)
        os.replace(name, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
