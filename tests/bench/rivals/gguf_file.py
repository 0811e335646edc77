"""A random Llama's checkpoint as a GGUF file with float16 weights, or float32, for llama.cpp.

Needs numpy and the PyPI package ``gguf`` and nothing of this project, since it runs under llama.cpp's own interpreter.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

_ALL_F32, _MOSTLY_F16 = 0, 1
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(checkpoint: Path, target: Path, single: bool = False) -> Path:
    """Convert ``config.json`` and ``model.safetensors`` of a folder; returns ``target``. single: to float32 weights.

    The vocabulary is made up: it only has to be as long as the embedding, for no text is ever turned into ids.
    """
    gguf: Any = importlib.import_module("gguf")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    vocab, heads = config["vocab_size"], config["num_attention_heads"]
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_file_type(_ALL_F32 if single else _MOSTLY_F16)
    writer.add_vocab_size(vocab)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"token{number}" for number in range(3, vocab))])
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *([kinds.NORMAL] * (vocab - 3))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in _tensors(checkpoint / "model.safetensors"):
        if name.endswith("q_proj.weight"):
            weight = _interleaved(weight, heads)
        elif name.endswith("k_proj.weight"):
            weight = _interleaved(weight, config["num_key_value_heads"])
        writer.add_tensor(_renamed(name), weight.astype(numpy.float32 if single or weight.ndim == 1 else numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Names and values, float32, of a safetensors file that holds bfloat16 or float32."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    data = numpy.memmap(path, numpy.uint8, "r", offset=8 + length)
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            if entry["dtype"] == "F32":
                yield name, data[begin:end].view("<f4").reshape(entry["shape"])
                continue
            if entry["dtype"] != "BF16":
                raise ValueError(f"{name} is {entry['dtype']}; only BF16 and F32 are converted")
            upper = data[begin:end].view("<u2").astype("<u4") << numpy.uint32(16)
            yield name, upper.view("<f4").reshape(entry["shape"])


def _interleaved(weight: Any, heads: int) -> Any:
    """Rows of a query or key matrix as llama.cpp rotates them: numbers 2i and 2i + 1 are a pair, not i and i + half."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _renamed(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        layer, part = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{_NAMES[part]}.weight"
    return f"{_NAMES[stem]}.weight"
