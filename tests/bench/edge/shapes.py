"""The models of both papers as configs of the families that Trilby reads: shapes alone, weights are random anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from device_agent.planning.shape import ModelShape
from split_model.spec import ModelSpec


@dataclass(frozen=True)
class Shape:
    """One model.

    Attributes:
        title: as tables call it.
        config: of the whole model, as a Hugging Face config.
        depth: the config's name for the number of layers.
        layers: of the whole model.
        swept: layers of the sweeps, all alike: about a quarter, and four at least.
        rows: of the prompt, text or image, as the paper has it.
    """

    title: str
    config: Mapping[str, Any]
    depth: str
    layers: int
    rows: int

    @property
    def swept(self) -> int:
        return min(self.layers, max(4, self.layers // 4))

    def spec(self, layers: int | None = None) -> ModelSpec:
        """Of the model with so many layers; None: with all."""
        return ModelSpec.from_config({**self.config, self.depth: layers or self.layers})

    def model(self, layers: int | None = None) -> ModelShape:
        """What planners know of it, weights of 4 bytes."""
        return ModelShape.of(self.spec(layers), "float32")


def _bert(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": 4 * hidden}
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "num_hidden_layers": layers,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "hidden_act": "gelu",
        **sizes,
    }


def _vit(layers: int, hidden: int, heads: int, patch: int) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": 4 * hidden}
    images = {"image_size": 224, "patch_size": patch, "num_channels": 3}
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "num_hidden_layers": layers,
        "hidden_act": "gelu",
        **sizes,
        **images,
    }


def _gpt2(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 1024, "vocab_size": 50257}
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}


def _opt(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_dim": 4 * hidden,
        "word_embed_proj_dim": hidden,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "activation_function": "relu",
    }


_LAYERS = "num_hidden_layers"

SHAPES: dict[str, Shape] = {
    "tiny": Shape("of tests", _gpt2(8, 64, 4), "n_layer", 8, 48),
    "bert-large": Shape("BERT-large", _bert(24, 1024, 16), _LAYERS, 24, 200),
    "bert-l": Shape("BERT-large", _bert(24, 1024, 16), _LAYERS, 24, 284),
    "vit-base": Shape("ViT-base", _vit(12, 768, 12, 16), _LAYERS, 12, 197),
    "gpt2": Shape("GPT-2", _gpt2(12, 768, 12), "n_layer", 12, 200),
    "distilbert": Shape(
        "DistilBERT",
        {
            "model_type": "distilbert",
            "architectures": ["DistilBertModel"],
            "n_layers": 6,
            "dim": 768,
            "n_heads": 12,
            "hidden_dim": 3072,
            "vocab_size": 30522,
            "max_position_embeddings": 512,
            "activation": "gelu",
        },
        "n_layers",
        6,
        284,
    ),
    "vit-huge": Shape("ViT-Huge", _vit(32, 1280, 16, 14), _LAYERS, 32, 257),
    # Its 48 layers and their sizes; cross-attention and relative positions are not run in groups.
    "t5-large": Shape("T5-L's sizes", _bert(48, 1024, 16), _LAYERS, 48, 284),
    "gpt2-large": Shape("GPT2-L", _gpt2(36, 1280, 20), "n_layer", 36, 284),
    "opt-1.3b": Shape("OPT-L", _opt(24, 2048, 32), _LAYERS, 24, 284),
    # Half as wide, with as many heads: shapes of EdgeFormer's models, scaled by one factor.
    "half-gpt2-l": Shape("GPT2-L", _gpt2(36, 640, 20), "n_layer", 36, 284),
    "half-opt-1.3b": Shape("OPT-1.3B", _opt(24, 1024, 32), _LAYERS, 24, 284),
    "half-opt-6.7b": Shape("OPT-6.7B", _opt(32, 2048, 32), _LAYERS, 32, 284),
    "half-opt-13b": Shape("OPT-13B", _opt(40, 2560, 40), _LAYERS, 40, 284),
    "grouped": Shape(
        "a Llama with 8 queries to a key",
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": 16,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "intermediate_size": 3072,
            "vocab_size": 32000,
            "max_position_embeddings": 2048,
        },
        _LAYERS,
        16,
        200,
    ),
}


def longer(name: str, rows: int) -> Shape:
    """A shape, with another prompt where that has rows."""
    return replace(SHAPES[name], rows=rows) if rows else SHAPES[name]
