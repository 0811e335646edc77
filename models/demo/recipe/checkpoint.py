"""Checkpoints as safetensors: weights, optimizer state and counters, replaced in one move."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

FILE = "checkpoint.safetensors"


@dataclass
class Progress:
    """How far training has come."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    runs: int = 0


def optimizer_tensors(prefix: str, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors of an optimizer's state, by number of parameter and name of entry."""
    found: dict[str, Tensor] = {}
    for number, state in optimizer.state_dict()["state"].items():
        for entry, value in state.items():
            found[f"{prefix}.{number}.{entry}"] = torch.as_tensor(value).detach().cpu().contiguous().clone()
    return found


def restore_optimizer(prefix: str, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put the tensors of a checkpoint back into an optimizer."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(prefix + "."):
            _, number, entry = name.split(".", 2)
            state.setdefault(int(number), {})[entry] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def save(
    folder: Path, weights: dict[str, Tensor], optimizers: dict[str, torch.optim.Optimizer], progress: Progress
) -> None:
    """Write a checkpoint beside the old one and then put it in its place."""
    tensors = {f"weights.{name}": value.detach().cpu().contiguous() for name, value in weights.items()}
    for prefix, optimizer in optimizers.items():
        tensors.update(optimizer_tensors(prefix, optimizer))
    beside = folder / (FILE + ".new")
    save_file(tensors, beside, metadata={"progress": json.dumps(asdict(progress))})
    os.replace(beside, folder / FILE)


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], Progress]:
    """The weights, all other tensors and the counters of a checkpoint."""
    path = folder / FILE
    tensors = load_file(path)
    with safe_open(path, framework="pt") as opened:
        progress = Progress(**json.loads(opened.metadata()["progress"]))
    weights = {name[len("weights.") :]: value for name, value in tensors.items() if name.startswith("weights.")}
    return weights, {name: value for name, value in tensors.items() if not name.startswith("weights.")}, progress
