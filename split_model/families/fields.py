"""Fields of a stranger's `config.json`, each checked for type and bounds before anybody computes with it. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from split_model.errors import UnsupportedModel

MAX_VOCAB_SIZE = 1 << 24
MAX_HIDDEN_SIZE = 1 << 17
MAX_INTERMEDIATE_SIZE = 1 << 20
MAX_LAYERS = 4096
MAX_HEADS = 4096
MAX_HEAD_DIM = 4096
MAX_POSITIONS = 1 << 27
MAX_LABELS = 1 << 20
MAX_PIXELS = 1 << 14

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}
"""What configs call an activation, and what the blocks call it."""

DTYPES = ("float32", "bfloat16", "float16")


def integer(config: Mapping[str, Any], field: str, most: int, least: int = 1) -> int:
    """A whole number. Raises UnsupportedModel, as all of these do, naming the field."""
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UnsupportedModel(f"{field} is {value!r}; it must be a whole number from {least} to {most}")
    return value


def flag(config: Mapping[str, Any], field: str, default: bool = False) -> bool:
    """True or false; null and nothing are the default."""
    value = config.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise UnsupportedModel(f"{field} is {value!r}; it must be true or false")
    return value


def norm_eps(config: Mapping[str, Any], field: str, default: float) -> float:
    """What a norm adds to a mean square: from 0 to 1."""
    value = config.get(field, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 or not math.isfinite(value):
        raise UnsupportedModel(f"{field} is {value!r}; it must be a number from 0 to 1")
    return float(value)


def activation(config: Mapping[str, Any], field: str, default: str) -> str:
    """The activation as the blocks call it: a value of ACTIVATIONS."""
    value = config.get(field, default)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise UnsupportedModel(f"{field} {value!r} is not supported; try one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


def even_head_dim(config: Mapping[str, Any], hidden_field: str, heads_field: str) -> int:
    """The size of a head where all heads together are as wide as a row."""
    hidden_size, num_heads = integer(config, hidden_field, MAX_HIDDEN_SIZE), integer(config, heads_field, MAX_HEADS)
    if hidden_size % num_heads:
        raise UnsupportedModel(f"{hidden_field} {hidden_size} is no multiple of {heads_field} {num_heads}")
    return hidden_size // num_heads


def token_ids(config: Mapping[str, Any], field: str, vocab_size: int) -> tuple[int, ...]:
    """One token id or a list of them; those that can never be produced are left out."""
    value = config.get(field)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        # -1 and ids past the vocabulary stand in real configs for "never".
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not -1 <= token_id <= MAX_VOCAB_SIZE:
            raise UnsupportedModel(f"{field} is {value!r}; it must be a token id or a list of token ids")
    return tuple(token_id for token_id in ids if 0 <= token_id < vocab_size)


def first_token_id(config: Mapping[str, Any], field: str, vocab_size: int) -> int | None:
    """The first of them, if any."""
    ids = token_ids(config, field, vocab_size)
    return ids[0] if ids else None


def dtype(config: Mapping[str, Any]) -> str:
    """The dtype of the checkpoint, by name."""
    value = config.get("dtype") or config.get("torch_dtype") or "float32"
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        raise UnsupportedModel(f"dtype {value!r} is not supported; supported are {', '.join(DTYPES)}")
    return name


def labels(config: Mapping[str, Any]) -> int:
    """How many classes a classifier tells apart; transformers assumes two."""
    named = config.get("id2label")
    if config.get("num_labels") is None and isinstance(named, Mapping):
        return integer({"id2label": len(named)}, "id2label", MAX_LABELS)
    return integer({"num_labels": 2, **config}, "num_labels", MAX_LABELS)


def two_sizes(config: Mapping[str, Any], field: str, most: int) -> tuple[int, int]:
    """Height and width: one number for both, or a list of the two."""
    value = config.get(field)
    both = value if isinstance(value, list) and len(value) == 2 else [value, value]
    height, width = (integer({field: each}, field, most) for each in both)
    return height, width


def has_class(config: Mapping[str, Any], *known: str) -> bool:
    """Whether the config's model class is one of these."""
    names = config.get("architectures")
    return isinstance(names, list) and any(name in known for name in names if isinstance(name, str))


def check_architectures(config: Mapping[str, Any], family: str, *known: str) -> None:
    """Refuses a config whose model class is none of these, in whatever case; one that names none is taken."""
    names = config.get("architectures")
    if names is None:
        return
    wanted = {each.lower() for each in known}
    if not isinstance(names, list) or not any(isinstance(name, str) and name.lower() in wanted for name in names):
        raise UnsupportedModel(f"architectures is {names!r}; of {family} models only {' and '.join(known)} can be run")


def check_value(config: Mapping[str, Any], field: str, value: object) -> None:
    """Refuses a field that is there and has any other value than the one that can be computed."""
    found = config.get(field)
    if found is not None and found != value:
        raise UnsupportedModel(f"{field} is {found!r}; only {value!r} is supported")
