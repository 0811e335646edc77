"""``python -m bench.hat.replay_device``: the device agent, flags and all, whose drafters say what was recorded.

Everything is the product's but what loads its drafters: they are handed on as ``ReplayedDrafter``. So it serves
only the wide model, and its log says that acceptance is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog
import torch
from bench.hat.replay import ReplayedDrafter
from bench.hat.tape import RECORDED, load
from bench.hat.wide_model import SMALL, is_wide

from device_agent.__main__ import EXAMPLES, run
from device_agent.chain.model_ends import DeviceParts
from device_agent.config import DeviceConfig
from device_agent.speculative.drafters import KINDS, Drafters, load_drafters
from drafting.drafter import Drafter
from drafting.errors import BadDrafter
from service.modes import NO_DRAFT
from service.settings import settings_command
from split_model.checkpoint import Checkpoint

SOURCES = {"hybrid": "fused"}
"""What a network's guesses are called, where that is not the drafter's own name."""


def load_replayed(
    wanted: Sequence[str], folder: Path, checkpoint: Checkpoint, split: int, dtype: torch.dtype, parts: DeviceParts
) -> Drafters:
    """What ``load_drafters`` of the device gives, wrapped. Raises BadDrafter, also for another model."""
    if not is_wide(checkpoint.path):
        raise BadDrafter(f"{checkpoint.path} is not of bench.hat.wide_model: what its next token is, nobody knows")
    loaded = load_drafters(wanted, folder, checkpoint, split, dtype, parts)
    tapes = load()
    replayed: dict[str, Drafter | None] = {}
    for name in loaded.names:
        drafter = loaded.get(name)
        if drafter is None:
            replayed[name] = None
            continue
        known = name if name in KINDS else SMALL
        if known not in tapes:
            raise BadDrafter(f"{RECORDED} has no drafter {known!r}: record one with `python -m bench.hat.recording`")
        replayed[name] = ReplayedDrafter(drafter, tapes[known], SOURCES.get(name, name), checkpoint.spec.vocab_size)
    structlog.get_logger().warning(
        "acceptance is replayed: it was recorded on the demo model",
        recording=RECORDED.name,
        drafters=[name for name in replayed if name != NO_DRAFT],
    )
    return Drafters(replayed, loaded.parameters)


if __name__ == "__main__":
    replaying = partial(run, load=load_replayed)
    settings_command(DeviceConfig, replaying, name="python -m bench.hat.replay_device", examples=EXAMPLES)()
