"""The families that can be run, by the `model_type` of a config. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from split_model.families import bert, distilbert, gpt2, llama, opt, t5, vit
from split_model.families.architecture import Architecture
from split_model.families.names import Names


@dataclass(frozen=True)
class Family:
    """How a config is read, and what the tensors are called; those of the encoder, where there is a decoder too."""

    read: Callable[[Mapping[str, Any]], Architecture]
    names: Names
    encoder_names: Names | None = None


FAMILIES = {
    **dict.fromkeys(llama.DEFAULTS, Family(llama.read, llama.NAMES)),
    "gpt2": Family(gpt2.read, gpt2.NAMES),
    "opt": Family(opt.read, opt.NAMES),
    "bert": Family(bert.read, bert.NAMES),
    "distilbert": Family(distilbert.read, distilbert.NAMES),
    "vit": Family(vit.read, vit.NAMES),
    "t5": Family(t5.read, t5.NAMES, t5.ENCODER_NAMES),
}
