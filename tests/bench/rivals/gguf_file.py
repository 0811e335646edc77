"""A random Llama's checkpoint as a GGUF file with float16 weights, or float32, for llama.cpp.

Needs numpy and the PyPI package ``gguf`` and nothing of this project, since it runs under llama.cpp's own interpreter.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
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
    tensors = _tensors(checkpoint / "model.safetensors")
    forms = [numpy.dtype("f4" if single or len(each.shape) == 1 else "f2") for each in tensors]
    for tensor, form in zip(tensors, forms, strict=True):
        nbytes = math.prod(tensor.shape) * form.itemsize
        writer.add_tensor_info(_renamed(tensor.name), tensor.shape, form, nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    # One at a time: what is converted may be several times the memory that there is.
    for tensor, form in zip(tensors, forms, strict=True):
        weight = tensor.read()
        if tensor.name.endswith("q_proj.weight"):
            weight = _interleaved(weight, heads)
        elif tensor.name.endswith("k_proj.weight"):
            weight = _interleaved(weight, config["num_key_value_heads"])
        writer.write_tensor_data(weight.astype(form))
    writer.close()
    return target


@dataclass(frozen=True)
class _Tensor:
    """Of a safetensors file. `read` gives its values, float32."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], Any]


def _tensors(path: Path) -> list[_Tensor]:
    """All of a file that holds bfloat16 or float32."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return [_tensor(path, name, 8 + length, entry) for name, entry in header.items()]


def _tensor(path: Path, name: str, at: int, entry: dict[str, Any]) -> _Tensor:
    kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if kind not in ("F32", "BF16"):
        raise ValueError(f"{name} is {kind}; only BF16 and F32 are converted")

    def read() -> Any:
        words = "<f4" if kind == "F32" else "<u2"
        values = numpy.fromfile(path, words, (end - begin) // numpy.dtype(words).itemsize, offset=at + begin)
        if kind == "BF16":
            values = (values.astype("<u4") << numpy.uint32(16)).view("<f4")
        return values.reshape(shape)

    return _Tensor(name, shape, read)


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
