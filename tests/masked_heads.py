"""The whole model of transformers, in which some heads give something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from split_model.pruning.kept import KeptHeads


@contextmanager
def replaced(model: Any, sets: Sequence[KeptHeads], means: torch.Tensor) -> Iterator[None]:
    """transformers' model, in which the pruned heads' contexts are `means` [layers, heads, head_dim]."""
    hooks = []
    layers = (
        model.transformer.h if hasattr(model, "transformer") else getattr(model.model, "decoder", model.model).layers
    )
    for layer, kept, mean in zip(layers, sets, means, strict=True):
        attention = layer.attn if hasattr(layer, "attn") else layer.self_attn
        last = next(getattr(attention, name) for name in ("o_proj", "c_proj", "out_proj") if hasattr(attention, name))

        def replace(_: Any, given: tuple[torch.Tensor], kept: KeptHeads = kept, mean: torch.Tensor = mean) -> Any:
            heads = given[0].clone().view(*given[0].shape[:-1], *mean.shape)
            heads[..., list(kept.pruned), :] = mean[list(kept.pruned)]
            return (heads.flatten(-2),)

        hooks.append(last.register_forward_pre_hook(replace))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
