"""The halves of a model that reads one text and writes another, as a group has them: the encoder's layers, then those
of the decoder that attends to what was read. Other models have one. Pure."""

from __future__ import annotations

from split_model.slices import Slice
from split_model.spec import ModelSpec


def readers_of(spec: ModelSpec) -> int:
    """How many of a group's first layers only read texts for those behind them; 0 for a model of one half."""
    return spec.reader_layers


def halves_of(spec: ModelSpec) -> list[tuple[ModelSpec, range]]:
    """Each half, and the numbers that its layers have in a group."""
    if spec.reader is None:
        return [(spec, range(spec.num_layers))]
    readers = spec.reader.num_layers
    return [(spec.reader, range(readers)), (spec, range(readers, readers + spec.num_layers))]


def own_slice(spec: ModelSpec, first: int, last: int) -> Slice:
    """Layers ``first`` up to, not including, ``last`` of a group, as far as they are the model's own: whoever has any
    of those also has its encoder's files."""
    readers = readers_of(spec)
    return Slice(max(0, first - readers), max(0, last - readers))
