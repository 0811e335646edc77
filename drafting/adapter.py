"""Drafting with one attention layer between the input submodel and the head, trained to stand for the middle.

Kind ``adapter`` is HAT's (section 3.4): it sees the shallow rows. Kind ``fused`` also sees the deep rows that
verifications have brought back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from drafting.adapter_layer import AdapterLayer, adapter_shapes
from drafting.adapter_session import AdapterSession
from drafting.drafter_file import read_drafter
from split_model.spec import ModelSpec
from split_model.stack import Head


class AdapterDrafter:
    """See ``drafting.drafter.Drafter``."""

    tree_nodes = 0

    def __init__(self, name: str, layer: AdapterLayer, head: Head, parameters: int) -> None:
        self.name = name
        self.parameters = parameters
        self._layer = layer
        self._head = head

    @classmethod
    def load(
        cls,
        path: Path,
        spec: ModelSpec,
        digest: str,
        split: int,
        dtype: torch.dtype,
        head: Head,
        kind: str = "adapter",
    ) -> AdapterDrafter:
        """Reads the file of kind ``adapter`` or ``fused`` that was trained for this model and split.

        dtype: of the input submodel's rows, and of the head. head: the model's own, shared; the layer is where it is.
        Raises BadDrafter.
        """
        file = read_drafter(path)
        file.check(kind, digest, split, adapter_shapes(spec, kind, file.shapes))
        return cls(kind, AdapterLayer(file, spec, dtype, head.device), head, file.parameters)

    def apart(self) -> AdapterDrafter:
        """Itself: it learns nothing from texts."""
        return self

    def open(self, positions: int, earlier: Sequence[int] = ()) -> AdapterSession:
        """Follow a text of at most ``positions`` tokens."""
        return AdapterSession(self.name, self._layer, self._head, positions)
