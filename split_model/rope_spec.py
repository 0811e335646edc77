"""The options of rotary positions, read from a model's config in its old and its new layout.

Old: `rope_theta` beside `rope_scaling` (whose kind is called `type` or `rope_type`). New: all in
`rope_parameters`. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from split_model.errors import UnsupportedModel

_FIELDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}


@dataclass(frozen=True)
class RopeSpec:
    """How positions turn into rotations. Fields that a kind does not use keep their defaults."""

    kind: str  # "default", "linear", "llama3" or "yarn"; "none" where positions are no rotations
    head_dim: int
    theta: float
    factor: float = 1.0
    original_max_positions: int = 0  # llama3, yarn: the length trained on before the extension
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    attention_factor: float = 1.0  # yarn: multiplies cos and sin

    @classmethod
    def none(cls, head_dim: int) -> RopeSpec:
        """Of a model whose positions are something else."""
        return cls("none", head_dim, 1.0)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], head_dim: int, max_positions: int) -> RopeSpec:
        """Raises UnsupportedModel, naming the field, for kinds and options that are not computed exactly."""
        found = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(found, Mapping):
            raise UnsupportedModel(f"rope_scaling is {found!r}; it must be an object or null")
        options = {"rope_theta": config.get("rope_theta"), **found}
        kind = options.pop("rope_type", None) or options.get("type") or "default"
        options.pop("type", None)
        if kind == "dynamic":
            # Its frequencies change with the length reached, so keys already cached would have to change too.
            raise UnsupportedModel("rope type 'dynamic' is not supported; use a yarn or linear config of the model")
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise UnsupportedModel(f"rope type {kind!r} is not supported; supported are {', '.join(_FIELDS)}")
        for holder in (options, config):
            if holder.get("partial_rotary_factor") not in (None, 1, 1.0):
                raise UnsupportedModel("partial_rotary_factor is not 1: partly rotated heads are not supported")
        theta = _positive(options, "rope_theta", 10_000.0)
        if kind == "yarn" and theta <= 1:
            raise UnsupportedModel(f"rope_theta is {theta:g}; yarn needs more than 1")
        unknown = {key for key, value in options.items() if value is not None}
        unknown -= {*_FIELDS[kind], "rope_theta", "partial_rotary_factor"}
        # Options of another kind change nothing; an option of no kind might.
        unknown -= {field for fields in _FIELDS.values() for field in fields}
        if unknown:
            raise UnsupportedModel(f"rope_scaling has unknown options: {', '.join(sorted(map(str, unknown)))}")
        if kind == "default":
            return cls(kind, head_dim, theta)
        if kind == "linear":
            return cls(kind, head_dim, theta, factor=_positive(options, "factor"))

        # transformers: a field beside the rope options goes before the one among them.
        field = "original_max_position_embeddings"
        original = _positive({field: config.get(field) or options.get(field)}, field, float(max_positions))
        if original != int(original):
            raise UnsupportedModel(f"{field} is {original}; it must be a whole number")
        if kind == "llama3":
            low, high = _positive(options, "low_freq_factor"), _positive(options, "high_freq_factor")
            if low == high:
                raise UnsupportedModel("low_freq_factor equals high_freq_factor, which leaves no room between them")
            factor = _positive(options, "factor")
            return cls(kind, head_dim, theta, factor, int(original), low_freq_factor=low, high_freq_factor=high)
        factor = _positive(options, "factor", max_positions / original)
        return cls(
            kind,
            head_dim,
            theta,
            factor,
            int(original),
            beta_fast=_positive(options, "beta_fast", 32.0),
            beta_slow=_positive(options, "beta_slow", 1.0),
            truncate=bool(options.get("truncate", True)),  # transformers takes null for false
            attention_factor=_yarn_attention_factor(options, factor),
        )


def _positive(options: Mapping[str, Any], field: str, default: float | None = None) -> float:
    value = options.get(field)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise UnsupportedModel(f"{field} of the rope options is {value!r}; it must be a positive number")
    return float(value)


def _yarn_attention_factor(options: Mapping[str, Any], factor: float) -> float:
    if options.get("attention_factor") is not None:
        return _positive(options, "attention_factor")

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if options.get("mscale") and options.get("mscale_all_dim"):
        return magnitude(_positive(options, "mscale")) / magnitude(_positive(options, "mscale_all_dim"))
    return magnitude(1.0)
