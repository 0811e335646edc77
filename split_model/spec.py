"""What a model is, read from its Hugging Face `config.json`: sizes and options as frozen data.

The file comes from strangers, so every field is checked for type and bounds, and whatever the blocks
cannot compute exactly is refused here, by name, before a byte of weights is read. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from split_model.errors import UnsupportedModel
from split_model.rope_spec import RopeSpec

MAX_VOCAB_SIZE = 1 << 24
MAX_HIDDEN_SIZE = 1 << 17
MAX_INTERMEDIATE_SIZE = 1 << 20
MAX_LAYERS = 4096
MAX_HEADS = 4096
MAX_HEAD_DIM = 4096
MAX_POSITIONS = 1 << 27

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
DTYPES = ("float32", "bfloat16", "float16")

# What transformers assumes where a config leaves a field out. `None` for KV heads: as many as heads.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": None, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2},
    "mistral": {
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32,
        "sliding_window": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen2": {
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
}
_REFUSED_IF_SET = (
    "quantization_config",
    "compression_config",
    "num_experts",
    "num_local_experts",
    "moe_intermediate_size",
)


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer: RMS norm, rotary positions, grouped-query attention, gated MLP."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    activation: str  # a value of ACTIVATIONS
    rope: RopeSpec
    tied_embeddings: bool  # the head's matrix is the embedding's
    qkv_bias: bool
    output_bias: bool  # bias of the attention's output projection
    mlp_bias: bool
    qk_norm: bool  # RMS norm over each head of q and k, before the rotation
    windows: tuple[int | None, ...]  # per layer: how many positions a row sees, itself included; None: all
    max_positions: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: str  # of the checkpoint, by name: "float32", "bfloat16" or "float16"

    @property
    def heads_per_group(self) -> int:
        """Query heads that share one KV head (a *KV group*)."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """Reads a parsed `config.json`, in the layout of transformers 4 or 5.

        Raises UnsupportedModel, naming the field, for whatever could not be computed exactly.
        """
        family = config.get("model_type")
        if not isinstance(family, str) or family not in _DEFAULTS:
            raise UnsupportedModel(f"model_type {family!r} is not supported; supported are {', '.join(_DEFAULTS)}")
        for field in _REFUSED_IF_SET:
            if config.get(field):
                raise UnsupportedModel(f"{field} is set: quantised and mixture-of-experts models are not supported")
        _check_architectures(config, family)

        filled = {**_DEFAULTS[family], **config}
        hidden_size = _integer(filled, "hidden_size", MAX_HIDDEN_SIZE)
        num_layers = _integer(filled, "num_hidden_layers", MAX_LAYERS)
        num_heads = _integer(filled, "num_attention_heads", MAX_HEADS)
        num_kv_heads = num_heads
        if filled["num_key_value_heads"] is not None:
            num_kv_heads = _integer(filled, "num_key_value_heads", MAX_HEADS)
        if num_heads % num_kv_heads:
            raise UnsupportedModel(f"num_attention_heads {num_heads} is no multiple of {num_kv_heads} key-value heads")
        head_dim = _head_dim(filled, hidden_size, num_heads)
        max_positions = _integer(filled, "max_position_embeddings", MAX_POSITIONS)
        vocab_size = _integer(filled, "vocab_size", MAX_VOCAB_SIZE)
        bos_token_ids = _token_ids(filled, "bos_token_id", vocab_size)
        attention_bias = _flag(filled, "attention_bias")
        mlp_bias = _flag(filled, "mlp_bias")
        if attention_bias and family in ("mistral", "qwen2"):
            raise UnsupportedModel(f"attention_bias is set, which {family} models do not have")
        if mlp_bias and family != "llama":
            raise UnsupportedModel(f"mlp_bias is set, which {family} models do not have")
        activation = filled.get("hidden_act", "silu")
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise UnsupportedModel(f"hidden_act {activation!r} is not supported; try one of {', '.join(ACTIVATIONS)}")

        return cls(
            model_type=family,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=_integer(filled, "intermediate_size", MAX_INTERMEDIATE_SIZE),
            norm_eps=_norm_eps(filled),
            activation=ACTIVATIONS[activation],
            rope=RopeSpec.from_config(filled, head_dim, max_positions),
            tied_embeddings=_flag(filled, "tie_word_embeddings"),
            qkv_bias=attention_bias or family == "qwen2",
            output_bias=attention_bias,
            mlp_bias=mlp_bias,
            qk_norm=family == "qwen3",
            windows=_windows(filled, family, num_layers),
            max_positions=max_positions,
            bos_token_id=bos_token_ids[0] if bos_token_ids else None,
            eos_token_ids=_token_ids(filled, "eos_token_id", vocab_size),
            dtype=_dtype(filled),
        )

    def with_eos(self, value: object) -> tuple[int, ...]:
        """The end-of-sequence ids that `generation_config.json` states; ours where it states none."""
        return _token_ids({"eos_token_id": value}, "eos_token_id", self.vocab_size) or self.eos_token_ids


def _integer(config: Mapping[str, Any], field: str, most: int, least: int = 1) -> int:
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UnsupportedModel(f"{field} is {value!r}; it must be a whole number from {least} to {most}")
    return value


def _flag(config: Mapping[str, Any], field: str) -> bool:
    value = config.get(field)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise UnsupportedModel(f"{field} is {value!r}; it must be true or false")
    return value


def _check_architectures(config: Mapping[str, Any], family: str) -> None:
    names = config.get("architectures")
    if names is None:
        return
    wanted = f"{family}forcausallm"
    if not isinstance(names, list) or not any(isinstance(name, str) and name.lower() == wanted for name in names):
        raise UnsupportedModel(f"architectures is {names!r}; only the causal language model of {family} is supported")


def _head_dim(config: Mapping[str, Any], hidden_size: int, num_heads: int) -> int:
    if config.get("head_dim") is not None:
        head_dim = _integer(config, "head_dim", MAX_HEAD_DIM)
    elif hidden_size % num_heads:
        raise UnsupportedModel(f"hidden_size {hidden_size} is no multiple of num_attention_heads {num_heads}")
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise UnsupportedModel(f"head_dim {head_dim} is odd; rotary positions need an even one")
    return head_dim


def _norm_eps(config: Mapping[str, Any]) -> float:
    value = config.get("rms_norm_eps", 1e-6)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 or not math.isfinite(value):
        raise UnsupportedModel(f"rms_norm_eps is {value!r}; it must be a number from 0 to 1")
    return float(value)


def _windows(config: Mapping[str, Any], family: str, num_layers: int) -> tuple[int | None, ...]:
    if family == "llama":
        return (None,) * num_layers
    uses_window = config.get("sliding_window") is not None
    if family != "mistral":
        uses_window = uses_window and _flag(config, "use_sliding_window")
    window = _integer(config, "sliding_window", MAX_POSITIONS) if uses_window else None
    layer_types = config.get("layer_types")
    if layer_types is None:
        first = 0
        if window is not None and family != "mistral":
            first = _integer(config, "max_window_layers", MAX_LAYERS, least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise UnsupportedModel(f"layer_types must be a list of {num_layers} names, one for each layer")
    known: dict[object, int | None] = {"full_attention": None}
    if window is not None:
        known["sliding_attention"] = window
    for name in layer_types:
        if not isinstance(name, str) or name not in known:
            raise UnsupportedModel(f"layer_types has {name!r}, which does not fit sliding_window {window}")
    windows = tuple(known[name] for name in layer_types)
    if family == "mistral" and any(found != window for found in windows):
        raise UnsupportedModel("layer_types mixes attentions, which mistral models do not do")
    return windows


def _token_ids(config: Mapping[str, Any], field: str, vocab_size: int) -> tuple[int, ...]:
    value = config.get(field)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        # -1 and ids past the vocabulary stand in real configs for "never"; they can never be produced.
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not -1 <= token_id <= MAX_VOCAB_SIZE:
            raise UnsupportedModel(f"{field} is {value!r}; it must be a token id or a list of token ids")
    return tuple(token_id for token_id in ids if 0 <= token_id < vocab_size)


def _dtype(config: Mapping[str, Any]) -> str:
    value = config.get("dtype") or config.get("torch_dtype") or "float32"
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        raise UnsupportedModel(f"dtype {value!r} is not supported; supported are {', '.join(DTYPES)}")
    return name
