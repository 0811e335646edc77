"""Rotary frequencies and tables against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from split_model.rope import Rope, inverse_frequencies
from split_model.rope_spec import RopeSpec

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "yarn-options": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
    },
}


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("head_dim", [8, 128])
def test_frequencies_and_tables_are_those_of_transformers(name: str, theta: float, head_dim: int) -> None:
    """Every kind, with every option, gives transformers' frequencies, cosines and sines bit for bit."""
    options = {**OPTIONS[name], "rope_theta": theta}
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=2048,
        rope_parameters=dict(options),
    )
    theirs = LlamaRotaryEmbedding(config)
    spec = RopeSpec.from_config({"rope_parameters": options}, head_dim, 2048)
    torch.testing.assert_close(inverse_frequencies(spec), theirs.inv_freq, rtol=1e-6, atol=0)

    cos, sin = theirs(torch.zeros(1), torch.arange(600)[None])
    rope = Rope(spec, torch.float32)
    found_cos, found_sin = rope.span(0, 600)
    half = head_dim // 2
    torch.testing.assert_close(found_cos[:, 0], cos[0], rtol=0, atol=2e-5)
    torch.testing.assert_close(found_sin[:, 0, half:], sin[0, :, half:], rtol=0, atol=2e-5)
    assert torch.equal(found_sin[:, 0, :half], -found_sin[:, 0, half:])


def test_the_table_grows_without_changing() -> None:
    """Positions mean the same whether asked for early, late, in a span or one by one."""
    spec = RopeSpec("default", 16, 10000.0)
    late = Rope(spec, torch.float32)
    early = Rope(spec, torch.float32)
    first = late.span(3, 5)
    whole = late.span(0, 5000)
    assert all(torch.equal(part, all_rows[3:8]) for part, all_rows in zip(first, whole, strict=True))
    picked = early.positions(torch.tensor([4999, 0, 7]))
    assert all(torch.equal(part, all_rows[[4999, 0, 7]]) for part, all_rows in zip(picked, whole, strict=True))
    assert early.positions(torch.empty(0, dtype=torch.int64))[0].shape == (0, 1, 16)
