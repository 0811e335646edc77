"""The families that can be run, by the `model_type` of a config. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from split_model.families import bert, distilbert, gpt2, llama, opt, t5, vit
from split_model.families.architecture import Architecture
from split_model.families.names import Names


@dataclass(frozen=True)
class Family:
    """How a config is read, and what the tensors are called; those of the encoder, where there is a decoder too.

    ``common`` has the common names of fields that this family has names of its own for. transformers takes both, and
    the common one where both are there.
    """

    read: Callable[[Mapping[str, Any]], Architecture]
    names: Names
    encoder_names: Names | None = None
    common: Mapping[str, str] = field(default_factory=dict)

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """What a config of this family says. Raises UnsupportedModel, naming the field."""
        own = {name: config[common] for common, name in self.common.items() if common in config}
        return self.read({**config, **own})


FAMILIES = {
    **dict.fromkeys(llama.DEFAULTS, Family(llama.read, llama.NAMES)),
    "gpt2": Family(gpt2.read, gpt2.NAMES, common=gpt2.COMMON),
    "opt": Family(opt.read, opt.NAMES),
    "bert": Family(bert.read, bert.NAMES),
    "distilbert": Family(distilbert.read, distilbert.NAMES, common=distilbert.COMMON),
    "vit": Family(vit.read, vit.NAMES),
    "t5": Family(t5.read, t5.NAMES, t5.ENCODER_NAMES, t5.COMMON),
}
