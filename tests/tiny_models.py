"""Tiny random models of every supported architecture, saved as Hugging Face folders by transformers itself.

Biases and norm weights, which transformers starts at 0 and 1, are random here: a forgotten bias must show.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,  # a greedy text runs to the length asked for
    "pad_token_id": None,
}
_ENDS: dict[str, Any] = {"vocab_size": 97, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": None}
_OTHER_SIZES: dict[str, dict[str, Any]] = {
    "GPT2": {**_ENDS, "n_embd": 32, "n_inner": 44, "n_layer": 4, "n_head": 4, "n_positions": 256},
    "OPT": {
        **_ENDS,
        "hidden_size": 32,
        "ffn_dim": 44,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
    },
}
"""Of families whose configs have fields of their own."""

_LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
_OTHER_SIZES["Bert"] = {**_LAYERS, "vocab_size": 97, "max_position_embeddings": 64}
_OTHER_SIZES["ViT"] = {**_LAYERS, "image_size": [12, 20], "patch_size": 4, "num_channels": 3}
_OTHER_SIZES["T5"] = {
    "vocab_size": 97,
    "d_model": 32,
    "d_kv": 10,
    "d_ff": 44,
    "num_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": None,
}
_SPREADS = {
    "T5": (("shared.weight", 0.1), (".q.weight", 0.1), ("relative_attention_bias.weight", 1.0), ("weight", 0.25)),
}
"""Of weights that would give flat scores, or one token over and over, if all were alike."""

_OTHER_SIZES["DistilBert"] = {
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "dim": 32,
    "hidden_dim": 44,
    "n_layers": 4,
    "n_heads": 4,
}

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-no-gqa": ("Llama", {"num_key_value_heads": 4}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 12, "hidden_act": "gelu_pytorch_tanh"}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": _LLAMA3_ROPE}),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
    ),
    "llama-yarn-rope": ("Llama", {"rope_parameters": _YARN_ROPE}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 9}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-biases": ("Qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
    "gpt2": ("GPT2", {}),
    "gpt2-untied": ("GPT2", {"tie_word_embeddings": False, "n_inner": None, "activation_function": "relu"}),
    "opt": ("OPT", {}),
    "opt-post-norm": ("OPT", {"do_layer_norm_before": False, "word_embed_proj_dim": 20, "activation_function": "gelu"}),
    "opt-no-biases": ("OPT", {"enable_bias": False, "tie_word_embeddings": False, "_remove_final_layer_norm": True}),
}
TINY_NAMES = tuple(_CONFIGS)
"""Models that write text."""

_READERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("Bert", "Model", {}),
    "bert-classifier": ("Bert", "ForSequenceClassification", {"num_labels": 3, "hidden_act": "gelu_new"}),
    "bert-masked": ("Bert", "ForMaskedLM", {}),
    "distilbert": ("DistilBert", "Model", {}),
    "distilbert-masked": ("DistilBert", "ForMaskedLM", {}),
    "distilbert-classifier": ("DistilBert", "ForSequenceClassification", {"num_labels": 5}),
    "vit": ("ViT", "Model", {"pooler_output_size": 20}),
    "vit-classifier": ("ViT", "ForImageClassification", {"num_labels": 7, "qkv_bias": False}),
}
_READERS["t5-encoder"] = ("T5", "EncoderModel", {})
READER_NAMES = tuple(_READERS)
"""Models that read texts or images and write none."""

_TRANSLATORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5": ("T5", "ForConditionalGeneration", {}),
    "t5-gated": (
        "T5",
        "ForConditionalGeneration",
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 2},
    ),
}
TRANSLATOR_NAMES = tuple(_TRANSLATORS)
"""Models that read one text and write another."""


def built(name: str, folder: Path) -> Path:
    """The model `name` in `folder`, made there where nobody has made it yet."""
    path = folder / name
    return path if path.exists() else build_tiny(name, path)


def build_tiny(name: str, path: Path, max_shard_bytes: int | None = None, **changes: Any) -> Path:
    """Saves the model `name` in the folder `path` (float32, the same weights every time) and returns the folder.

    `max_shard_bytes` splits the weights over several files with an index. `changes` go into the config.
    """
    key = f"{name} {max_shard_bytes} {sorted(changes.items())}"
    return remembered(key, path, lambda folder: _build(name, folder, max_shard_bytes, changes))


def remembered(key: str, path: Path, make: Callable[[Path], None]) -> Path:
    """The folder `path` with the files that `make` writes into a folder; for the same key little ones are made once."""
    files = _MADE.get(key)
    if files is None:
        with TemporaryDirectory() as folder:
            make(Path(folder))
            files = {each.name: each.read_bytes() for each in Path(folder).iterdir()}
        if sum(map(len, files.values())) <= LITTLE_BYTES:
            _MADE[key] = files
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


LITTLE_BYTES = 2_000_000
_MADE: dict[str, dict[str, bytes]] = {}
"""Files by key and name."""


def _build(name: str, path: Path, max_shard_bytes: int | None, changes: dict[str, Any]) -> None:
    import transformers

    if name not in _CONFIGS:
        family, kind, options = {**_READERS, **_TRANSLATORS}[name]
        make = getattr(transformers, family + kind)
    else:
        family, options = _CONFIGS[name]
        make = transformers.AutoModelForCausalLM.from_config
    config = getattr(transformers, f"{family}Config")(**{**_OTHER_SIZES.get(family, _SIZES), **options, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(20)
        model = make(config)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter_name.endswith("bias"):
                    parameter.normal_(0, 0.3)
                elif "norm" in parameter_name.lower() or "ln_" in parameter_name:
                    parameter.normal_(1, 0.3)
                else:
                    # Wider than the default, so that attention is far from uniform and the logits far from flat.
                    spreads = (spread for end, spread in _SPREADS.get(family, ()) if parameter_name.endswith(end))
                    parameter.normal_(0, next(spreads, 0.2))
    size = {} if max_shard_bytes is None else {"max_shard_size": max_shard_bytes}
    model.save_pretrained(path, **size)
