"""What each stage of a pipeline is told to hold, and how layers are cut into stages."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import torch

LOADED = "loaded/"
"""What a stage posts, with its rank, once it has its layers."""

ALL_LOADED = "all loaded"
"""What the first stage posts once all have: then they reach for each other."""

LOADED_WITHIN_S = 900.0
"""A stage that has not loaded by then hangs: the largest checkpoints take minutes from a slow disk."""


class StagePlan(msgspec.Struct, frozen=True):
    """What the first stage wants of another.

    Attributes:
        first_layer, last_layer: its layers, as in ``Slice``.
        dtype: of weights and hidden states.
        pages, page_positions: of its KV cache: in every stage the same, so that one page table holds for all.
        transport: how hidden states go: ``links`` or ``nccl``.
        digest: what its checkpoint must be, see ``split_model.hub.identity``; empty: it is the very same folder.
    """

    first_layer: int
    last_layer: int
    dtype: str
    pages: int
    page_positions: int
    transport: str
    digest: str = ""

    def encoded(self) -> bytes:
        """As ``read`` takes it."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def read(cls, data: bytes) -> StagePlan:
        """Raises ``ValueError`` for anything else."""
        return msgspec.msgpack.decode(data, type=cls)


def stage_layers(first: int, last: int, stages: int) -> list[range]:
    """Layers ``first`` up to, not including, ``last``, cut evenly; where it does not come out, later stages have more.

    The first stage is the process that also serves the devices, so it never has more than another.
    Raises ``ValueError`` where a stage would be left without layers.
    """
    layers = last - first
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers cannot be shared by {stages} stages")
    cuts = [first + stage * layers // stages for stage in range(stages + 1)]
    return [range(begin, end) for begin, end in pairwise(cuts)]


def stage_device(device: str, rank: int, stages: int) -> torch.device:
    """Where stage ``rank`` of one machine computes: ``cuda`` gives each a GPU of its own if there are as many, else all
    one."""
    if device == "cuda":
        return torch.device("cuda", rank if torch.cuda.device_count() >= stages else 0)
    return torch.device(device)
