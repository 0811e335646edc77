"""Checkpoints of a training run as safetensors: parameters, optimizer state and counters, replaced in one move."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

FILE = "checkpoint.safetensors"


@dataclass(frozen=True)
class Found:
    """What a checkpoint holds."""

    tensors: dict[str, Tensor]
    progress: dict[str, Any]


def save(
    folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any], identity: Any
) -> None:
    """Write a checkpoint beside the old one and then put it in its place."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"parameter.{name}": value.detach().contiguous() for name, value in network.named_parameters()}
    for number, state in optimizer.state_dict()["state"].items():
        for entry, value in state.items():
            tensors[f"optimizer.{number}.{entry}"] = torch.as_tensor(value).detach().contiguous().clone()
    beside = folder / (FILE + ".new")
    save_file(tensors, beside, metadata={"progress": json.dumps(progress), "identity": _canonical(identity)})
    os.replace(beside, folder / FILE)


def load(folder: Path, identity: Any) -> Found | None:
    """The checkpoint in a folder, None where there is none or it belongs to another run."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
        if metadata.get("identity") != _canonical(identity):
            return None
        return Found(load_file(path), json.loads(metadata["progress"]))
    except (SafetensorError, KeyError, ValueError):
        return None


@torch.no_grad()
def restore(network: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put the tensors of a checkpoint back."""
    for name, parameter in network.named_parameters():
        parameter.copy_(tensors[f"parameter.{name}"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, entry = name.split(".", 2)
            state.setdefault(int(number), {})[entry] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _canonical(identity: Any) -> str:
    return json.dumps(identity, sort_keys=True)
