"""Random drafters for random tiny models, and the head of such a model."""

from __future__ import annotations

from typing import Any

import torch

from split_model.matrix import Matrix
from split_model.norm import RmsNorm
from split_model.spec import ModelSpec
from split_model.stack import Head

DIGEST = "sha256:" + "ab" * 32
SPLIT = 2


def tiny_spec(**changes: Any) -> ModelSpec:
    """A small llama whose heads share keys and values and are narrower together than the rows."""
    config: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": 31,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100.0,
    }
    return ModelSpec.from_config({**config, **changes})


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int = 1) -> dict[str, torch.Tensor]:
    """Tensors with which every part of a drafter matters: vectors around 1, matrices that keep the size of rows."""
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=chance)
        tensors[name] = drawn / shape[-1] ** 0.5 if len(shape) == 2 else 1 + 0.3 * drawn
    return tensors


def adapter_weights(spec: ModelSpec, kind: str, form: str = "", seed: int = 1) -> dict[str, torch.Tensor]:
    """Of kind ``adapter``, or ``fused`` of form "", "keep" or "keep-mlp"."""
    hidden, rank = spec.hidden_size, 5
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "norm": (hidden,),
        "query": (heads, hidden),
        "key": (kv, hidden),
        "value": (kv, hidden),
        "output": (hidden, heads),
    }
    if kind == "fused":
        shapes |= {"deep_norm": (hidden,), "fuse": (hidden, hidden)}
    if form in ("keep", "keep-mlp"):
        shapes["keep"] = (hidden,)
    if form == "keep-mlp":
        shapes |= {"mlp_norm": (hidden,), "up": (rank, hidden), "down": (hidden, rank)}
    return random_weights(shapes, seed)


def medusa_weights(spec: ModelSpec, seed: int = 1) -> dict[str, torch.Tensor]:
    """Of kind ``medusa``."""
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {}
    for each in range(4):
        shapes[f"heads.{each}.block"] = (hidden, hidden)
        shapes[f"heads.{each}.bias"] = (hidden,)
        shapes[f"heads.{each}.head"] = (spec.vocab_size, hidden)
    return random_weights(shapes, seed)


def head_weights(spec: ModelSpec) -> dict[str, torch.Tensor]:
    """``norm`` and ``matrix`` of the model itself."""
    return random_weights({"norm": (spec.hidden_size,), "matrix": (spec.vocab_size, spec.hidden_size)}, seed=7)


def random_head(spec: ModelSpec, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Head:
    """The head with ``head_weights``."""
    weights = {name: each.to(device, dtype) for name, each in head_weights(spec).items()}
    return Head(RmsNorm(weights["norm"], spec.norm_eps), Matrix(weights["matrix"], pack=False), shared=False)
