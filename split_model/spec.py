"""What a model is, read from its Hugging Face `config.json`: sizes and options as frozen data.

The file comes from strangers, so every field is checked for type and bounds, and whatever the blocks
cannot compute exactly is refused here, by name, before a byte of weights is read. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from split_model.errors import UnsupportedModel
from split_model.families import fields
from split_model.families.architecture import Architecture
from split_model.families.known import FAMILIES
from split_model.families.names import Names

_REFUSED_IF_SET = (
    "quantization_config",
    "compression_config",
    "num_experts",
    "num_local_experts",
    "moe_intermediate_size",
)


_DOES = {
    "causal": "writes on from a text",
    "bidirectional": "reads whole texts or images and writes none",
    "cross": "reads one text and writes another",
}


@dataclass(frozen=True)
class ModelSpec(Architecture):
    """The architecture of a model, of whichever family it is."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """Reads a parsed `config.json`, in the layout of transformers 4 or 5.

        Raises UnsupportedModel, naming the field, for whatever could not be computed exactly.
        """
        family = config.get("model_type")
        if not isinstance(family, str) or family not in FAMILIES:
            raise UnsupportedModel(f"model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}")
        for field in _REFUSED_IF_SET:
            if config.get(field):
                raise UnsupportedModel(f"{field} is set: quantised and mixture-of-experts models are not supported")
        fields.check_value(config, "per_layer_config", {})
        return cls(**vars(FAMILIES[family].architecture(config)))

    @property
    def names(self) -> Names:
        """What its tensors are called."""
        family = FAMILIES[self.model_type]
        reads = family.encoder_names is not None and self.attention == "bidirectional"
        return family.encoder_names if reads and family.encoder_names is not None else family.names

    @property
    def final_size(self) -> int:
        """Width of the rows as the model gives them, before they are made logits or vectors."""
        return self.embedding_size or self.hidden_size

    @property
    def reader(self) -> ModelSpec | None:
        """The encoder that this model's rows attend to, if any."""
        return None if self.encoder is None else ModelSpec(**vars(self.encoder))

    @property
    def reader_layers(self) -> int:
        """How many layers come before this model's own where those of its encoder are numbered first: as a group has
        them, and as units are named. 0 for a model of one half."""
        return 0 if self.encoder is None else self.encoder.num_layers

    def check_attention(self, attention: str) -> None:
        """Raises UnsupportedModel unless this is a model of that kind."""
        if self.attention != attention:
            raise UnsupportedModel(f"a {self.model_type} model {_DOES[self.attention]}: it cannot be used here")

    def with_eos(self, value: object) -> tuple[int, ...]:
        """The end-of-sequence ids that `generation_config.json` states, none where it says "never"; ours where it says
        nothing."""
        if value is None:
            return self.eos_token_ids
        return fields.token_ids({"eos_token_id": value}, "eos_token_id", self.vocab_size)
