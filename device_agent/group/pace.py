"""How fast a member computes: what its own part of the steps took, and a trial where it has none."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import torch

TRIAL_S: Final = 0.25
"""A trial takes so long: some turns of a scheduler that gives a machine's cores to several processes."""

_SIZE: Final = 256


@torch.inference_mode()
def speed() -> float:
    """Products a second of two small matrices, tried for ``TRIAL_S`` on this thread."""
    one = torch.ones((_SIZE, _SIZE))
    made, began = 0, perf_counter()
    while (took := perf_counter() - began) < TRIAL_S:
        torch.mm(one, one)
        made += 1
    return made / took
