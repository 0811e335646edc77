"""The parts of a model that stay in memory or are read from the disk each time they are used. Pure.

LIME moves a layer's attention (MHA) and its MLP apart from one another: half a layer is enough to make room for the
keys and values of some hundred more positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Half = Literal["attention", "mlp"]
"""Which matrices of a layer: those of queries, keys, values and output, cross-attention's too, or those of the MLP.
Norms always stay."""

HALVES: Final[tuple[Half, Half]] = ("attention", "mlp")
"""In the order of use."""


@dataclass(frozen=True, order=True)
class Unit:
    """Half of a layer.

    Attributes:
        layer: numbered as in the model; an encoder's layers come before those of the decoder that attends to it.
        half: which; in a layer attention is used first.
    """

    layer: int
    half: Half


def spread(layers: Sequence[int], count: int) -> list[int]:
    """So many of the layers, as far from one another as can be."""
    return [layers[(2 * number + 1) * len(layers) // (2 * count)] for number in range(count)]
