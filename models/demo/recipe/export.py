"""From a checkpoint to the published folder: bf16 weights, configuration and generation settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from . import checkpoint
from .network import EPSILON, THETA, Shape
from .tokenizer import BOS, END, PAD, special


def configuration(shape: Shape, tokenizer: Tokenizer) -> dict[str, object]:
    """What transformers reads from config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **shape.as_dict(),
        "head_dim": shape.head,
        "hidden_act": "silu",
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": special(tokenizer, BOS),
        "eos_token_id": special(tokenizer, END),
        "pad_token_id": special(tokenizer, PAD),
    }


def export(run: Path, out: Path, shape: Shape) -> None:
    """Write the model of a run's checkpoint, with its tokenizer, to the published folder."""
    weights, _, _ = checkpoint.load(run)
    out.mkdir(parents=True, exist_ok=True)
    narrow = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    save_file(narrow, out / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (run / name).resolve() != (out / name).resolve():
            shutil.copyfile(run / name, out / name)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    config = configuration(shape, tokenizer)
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "generation_config.json").write_text(
        json.dumps({**generation, "do_sample": False, "max_new_tokens": 256}, indent=2) + "\n", encoding="utf-8"
    )
