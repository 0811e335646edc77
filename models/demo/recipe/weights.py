"""The float32 weights under their published names, and how they join into the trained network."""

from __future__ import annotations

import torch
from torch import Tensor

from .network import Network, Shape

PARTS = {
    "qkv.weight": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out.weight": ("self_attn.o_proj",),
    "gate_up.weight": ("mlp.gate_proj", "mlp.up_proj"),
    "down.weight": ("mlp.down_proj",),
    "before": ("input_layernorm",),
    "after": ("post_attention_layernorm",),
}


def joined_names(shape: Shape) -> dict[str, list[str]]:
    """For each parameter of the network the published tensors that it is made of, in order."""
    names = {"embed.weight": ["model.embed_tokens.weight"], "last": ["model.norm.weight"]}
    for number in range(shape.num_hidden_layers):
        for own, parts in PARTS.items():
            names[f"layers.{number}.{own}"] = [f"model.layers.{number}.{part}.weight" for part in parts]
    return names


def fresh_weights(shape: Shape, seed: int) -> dict[str, Tensor]:
    """Newly drawn weights; the matrices that write to the residual stream start smaller."""
    chance = torch.Generator().manual_seed(seed)
    inner = shape.num_key_value_heads * shape.head
    h, i = shape.hidden_size, shape.intermediate_size
    sizes = {"self_attn.q_proj": (h, h), "self_attn.k_proj": (inner, h), "self_attn.v_proj": (inner, h),
             "self_attn.o_proj": (h, h), "mlp.gate_proj": (i, h), "mlp.up_proj": (i, h),
             "mlp.down_proj": (h, i)}  # fmt: skip
    small = (2 * shape.num_hidden_layers) ** -0.5
    weights = {"model.embed_tokens.weight": torch.randn(shape.vocab_size, h, generator=chance) * 0.02}
    for number in range(shape.num_hidden_layers):
        for part, size in sizes.items():
            scale = size[1] ** -0.5 * (small if part.endswith(("o_proj", "down_proj")) else 1.0)
            weights[f"model.layers.{number}.{part}.weight"] = torch.randn(size, generator=chance) * scale
        for part in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{number}.{part}.weight"] = torch.ones(h)
    weights["model.norm.weight"] = torch.ones(h)
    return weights


@torch.no_grad()
def load_into(network: Network, weights: dict[str, Tensor], names: dict[str, list[str]]) -> None:
    """Copy the published weights into the network, in the network's own number format."""
    for own, parameter in network.named_parameters():
        parameter.copy_(
            torch.cat([weights[part] for part in names[own]]) if len(names[own]) > 1 else weights[names[own][0]]
        )


def flat_gradients(network: Network, extra: list[float]) -> Tensor:
    """All gradients as one float32 vector with a few more numbers at its end, ready to be averaged among workers."""
    parts = [parameter.grad.reshape(-1).float() for parameter in network.parameters() if parameter.grad is not None]
    return torch.cat([*parts, torch.tensor(extra, device=parts[0].device)])


def hand_out(flat: Tensor, network: Network, weights: dict[str, Tensor], names: dict[str, list[str]]) -> None:
    """Give each published weight its piece of the averaged gradient."""
    spot = 0
    for own, _ in network.named_parameters():
        for part in names[own]:
            count = weights[part].numel()
            weights[part].grad = flat[spot : spot + count].view(weights[part].shape)
            spot += count
