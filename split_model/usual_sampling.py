"""How a model's `generation_config.json` has tokens chosen, where a request says nothing else. No torch.

transformers applies it in `generate`, greedy or not, and vLLM to requests: a model is tuned with it. Older models have
no such file, and these fields in their `config.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from split_model.errors import BadCheckpoint

_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 1 << 31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}

_CHANGES_NOTHING: Mapping[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    "stop_strings": ([],),
    "top_h": (),
    "max_time": (),
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "force_words_ids": ([],),
}
"""Fields by which transformers changes what is said and which are not done here, with values that change nothing."""


@dataclass(frozen=True)
class UsualSampling:
    """Values by the members of a request; None: as where there is no such file.

    Attributes:
        ignored: fields that are there and are not done.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignored: tuple[str, ...] = ()

    @classmethod
    def read(cls, config: Mapping[str, Any], file: str = "generation_config.json") -> UsualSampling:
        """Of a parsed `generation_config.json`, or of that ``file``. Raises BadCheckpoint for a value that is none."""
        found: dict[str, Any] = {}
        for name, (least, most) in _RANGES.items():
            value = config.get(name)
            if name == "top_k" and isinstance(value, int) and value < 0:
                value = 0  # Off, as some files say it.
            if value is None:
                continue
            kinds = (int,) if name == "top_k" else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
                raise BadCheckpoint(f"{file} has {name} {value!r}; it is from {least} to {most}")
            found[name] = value
        ignored = [
            name
            for name, nothing in _CHANGES_NOTHING.items()
            if config.get(name) is not None and config[name] not in nothing
        ]
        return cls(**found, ignored=tuple(ignored))

    def of(self, names: Iterable[str]) -> dict[str, Any]:
        """Of these members, those that the file has a value for."""
        values = {name: getattr(self, name) for name in names if name in _RANGES}
        return {name: value for name, value in values.items() if value is not None}


NOTHING_USUAL = UsualSampling()
