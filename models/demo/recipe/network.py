"""The Llama network as it is trained: fewer, larger matrix products than the published layout, same numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of the network, named as transformers names them."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 12
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 2048

    @property
    def head(self) -> int:
        """The width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def as_dict(self) -> dict[str, int]:
        """The sizes as a plain dictionary."""
        return asdict(self)


TINY = Shape(hidden_size=64, intermediate_size=128, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2)
EPSILON = 1e-5
THETA = 10000.0


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square norm, worked out in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)).to(x.dtype) * weight


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(nn.Module):
    """One decoder layer with joined projections."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        wide = shape.hidden_size + 2 * shape.num_key_value_heads * shape.head
        self.qkv = nn.Linear(shape.hidden_size, wide, bias=False)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.gate_up = nn.Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)
        self.before = nn.Parameter(torch.ones(shape.hidden_size))
        self.after = nn.Parameter(torch.ones(shape.hidden_size))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The layer's output for a batch of rows."""
        s = self.shape
        rows, length, _ = x.shape
        heads, kv = s.num_attention_heads, s.num_key_value_heads
        mixed = self.qkv(norm(x, self.before)).view(rows, length, heads + 2 * kv, s.head)
        q, k, v = mixed.split((heads, kv, kv), 2)
        q, k, v = turn(q, cos, sin).transpose(1, 2), turn(k, cos, sin).transpose(1, 2), v.transpose(1, 2)
        k, v = k.repeat_interleave(heads // kv, 1), v.repeat_interleave(heads // kv, 1)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, s.hidden_size))
        gate, up = self.gate_up(norm(x, self.after)).split((s.intermediate_size, s.intermediate_size), -1)
        x = x + self.down(F.silu(gate) * up)
        return x


class Network(nn.Module):
    """The whole network; called with targets it returns the weighted loss at the chosen places."""

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.last = nn.Parameter(torch.ones(shape.hidden_size))
        speed = THETA ** (-torch.arange(0, shape.head, 2).float() / shape.head)
        angle = torch.outer(torch.arange(length).float(), speed).repeat(1, 2)[:, None]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, rows: Tensor, places: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the cross-entropies at ``places`` of the flattened rows."""
        x = self.embed(rows)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        x = norm(x, self.last).reshape(-1, x.shape[-1])[places]
        logits = F.linear(x, self.embed.weight).float()
        loss: Tensor = (F.cross_entropy(logits, targets, reduction="none") * weights).sum()
        return loss
