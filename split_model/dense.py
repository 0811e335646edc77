"""A matrix that a text's vector goes through, as sentence-transformers keeps it: in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.nn import functional

from split_model.checkpoint import MAX_CONFIG_BYTES, SINGLE_FILE, read_object
from split_model.device import put
from split_model.errors import BadCheckpoint, UnsupportedModel
from split_model.families import fields
from split_model.safetensors_file import SafetensorsFile

DENSE_FILES = ("config.json", SINGLE_FILE)

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": functional.gelu,
}


class Dense:
    """activation(weight x + bias), in float32.

    Attributes:
        size: numbers that come out.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str) -> None:
        """weight [size, inputs]; activation: a name of PyTorch's class."""
        self.size = len(weight)
        self._weight, self._bias, self._activation = weight, bias, _ACTIVATIONS[activation]

    @classmethod
    def load(cls, folder: Path, inputs: int) -> Dense:
        """Of vectors of so many numbers. Raises BadCheckpoint, UnsupportedModel naming the field."""
        config = read_object(folder / "config.json", MAX_CONFIG_BYTES)
        size = fields.integer(config, "out_features", fields.MAX_HIDDEN_SIZE)
        activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
        if activation not in _ACTIVATIONS:
            raise UnsupportedModel(f"activation_function {activation} is not supported; try {', '.join(_ACTIVATIONS)}")
        if not (folder / SINGLE_FILE).is_file():
            raise BadCheckpoint(f"{folder} has no {SINGLE_FILE}; convert the model to safetensors")
        file, shapes = SafetensorsFile(folder / SINGLE_FILE), {"linear.weight": (size, inputs), "linear.bias": (size,)}
        if not fields.flag(config, "bias", True):
            del shapes["linear.bias"]
        found = {}
        for name, shape in shapes.items():
            if file.entry(name).shape != shape:
                raise BadCheckpoint(f"{name} of {folder} has shape {file.entry(name).shape}, not {shape}")
            found[name] = torch.empty(shape)
            file.read_into(name, found[name], None, None)
        return cls(found["linear.weight"], found.get("linear.bias"), activation)

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """float32 [texts, inputs] -> [texts, size]."""
        bias = None if self._bias is None else put(self._bias, vectors.device)
        return self._activation(functional.linear(vectors, put(self._weight, vectors.device), bias))
