"""A Llama of random weights whose next token is certain, and drafters for it that cost what trained ones would.

    python -m bench.hat.wide_model FOLDER

What is measured on it is time. Its matrices are dense and of ordinary size, so nothing is cheaper than in a trained
model; but what its layers add is small beside the embedding, and the head holds the embedding in another order. So the
token that follows hangs on the one before alone, whatever the batch, its rounding, or the kernel: one cycle over all
ordinary words, which no answer comes to the end of. ``next_token`` knows it, and no text ends by itself.

The drafters and the small model beside it are random too. What they would have to say comes from a recording.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from bench.random_llama import SEED, Shape
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from drafting.adapter_layer import adapter_shapes
from drafting.drafter_file import write_drafter
from drafting.medusa import medusa_shapes
from split_model.checkpoint import Checkpoint
from split_model.spec import ModelSpec

WIDE: Final = Shape(
    hidden=768, layers=28, intermediate=2048, heads=12, kv_heads=12, vocab=4096, positions=2304
)  # 204 million parameters, no heads that share keys and values: as Vicuna, and a row of 1536 bytes
TINY_WIDE: Final = Shape(
    hidden=128, layers=3, intermediate=192, heads=2, kv_heads=2, vocab=512, positions=512
)  # with which a test takes a second

SPLIT: Final = 1
"""Layers on the device: of 28 about the share that the paper's 2 of 32 are."""

SMALL: Final = "small"
"""What the small model is called."""

FORM: Final = 2
"""Counts up when other files are written for the same shape."""

MARK: Final = "wide.json"
"""File that says that a folder has such a model, whole."""

STRIDE: Final = 1597
"""From a token to the next, around all ordinary ones; prime, so that it comes by all of them."""

GAIN: Final = 0.5
"""What a matrix makes of rows of size 1, before what a layer adds is made smaller: as large as usual at this width."""

SURE: Final = 16.0
"""The logit of the token that follows; those of all others are about 0."""


SPECIAL: Final = (
    "<|pad|>",
    "<|begin|>",
    "<|end|>",
    "<|unknown|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|none|>",
)
FIRST: Final = len(SPECIAL)
"""The first ordinary token."""

TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
FRAME_TOKENS: Final = 4
"""Tokens that the template puts around a prompt of one message."""


def next_token(token: int, vocab: int) -> int:
    """The greedy token behind ``token``; a special one is followed as the ordinary one is whose embedding it has."""
    ordinary = vocab - FIRST
    at = token - FIRST if token >= FIRST else token
    return FIRST + (at + STRIDE) % ordinary


def prompt(tokens: int, seed: int, vocab: int = WIDE.vocab) -> str:
    """Words that make, as the one message of a conversation, a prompt of ``tokens`` tokens. Raises ValueError for a
    prompt shorter than a conversation's frame and one word."""
    count = tokens - FRAME_TOKENS
    if count < 1:
        raise ValueError(f"a prompt has {FRAME_TOKENS + 1} tokens at least, not {tokens}")
    chance = Random(seed)
    return " ".join(word(chance.randrange(FIRST, vocab)) for _ in range(count))


def word(token: int) -> str:
    """What stands for an ordinary token: two syllables, and a third where there are too many tokens for two."""
    word, at = "", token - FIRST
    while at or not word:
        at, syllable = divmod(at, 100)
        word += "bdfghklmnprstvwxzcjq"[syllable // 5] + "aeiou"[syllable % 5]
    return word


def _write_tokenizer(folder: Path, vocab: int) -> None:
    """Every token a word of its own, so that prompts can have any wanted length in tokens."""
    words = [*SPECIAL, *map(word, range(FIRST, vocab))]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "pad_token": "<|pad|>",
        "unk_token": "<|unknown|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def made(folder: Path, shape: Shape = WIDE, split: int = SPLIT) -> Path:
    """The folder with model, drafters and small model of this shape, made unless it is there. Raises OSError."""
    wanted = json.dumps({"shape": asdict(shape), "split": split, "seed": SEED, "form": FORM})
    mark = folder / MARK
    if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as building:
        whole = Path(building) / "model"
        _write_model(whole, shape, SEED, tied=False)
        spec = Checkpoint.open(whole).spec
        _write_model(small_model(whole), small_shape(shape), SEED + 1, tied=True)
        _write_drafters(whole / "drafters", spec, Checkpoint.open(whole).digest(), split)
        (whole / MARK).write_text(wanted, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        whole.rename(folder)
    return folder


def is_wide(folder: Path) -> bool:
    """Whether a folder has such a model."""
    return (folder / MARK).is_file()


def small_model(folder: Path) -> Path:
    """The folder of the small model for a model's folder, which ``--draft`` is given."""
    return folder / "drafters" / SMALL


def small_shape(shape: Shape) -> Shape:
    """The independent small model: of the wide one's parameters about what HAT's network is of its model's, 67 M of
    7 B."""
    hidden = shape.hidden // 4
    heads = max(1, hidden // 64)
    return replace(shape, hidden=hidden, layers=4, intermediate=shape.intermediate // 4, heads=heads, kv_heads=heads)


def _write_model(folder: Path, shape: Shape, seed: int, tied: bool) -> None:
    """A checkpoint folder with tokenizer and chat template; ``tied`` is for one whose answers nobody looks at."""
    folder.mkdir(parents=True)
    chance = torch.Generator().manual_seed(seed)
    save_file(dict(_tensors(shape, chance, tied)), folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": SPECIAL.index("<|begin|>"),
        "eos_token_id": None,
        "pad_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _write_tokenizer(folder, shape.vocab)


def _tensors(shape: Shape, chance: torch.Generator, tied: bool) -> Iterator[tuple[str, torch.Tensor]]:
    hidden, inner = shape.hidden, shape.intermediate
    # Together the layers add to the embedding, whose elements are of size 1, a fraction of it.
    added = GAIN / (2 * shape.layers) ** 0.5
    kv = hidden // shape.heads * shape.kv_heads

    embedding = _matrix(shape.vocab, hidden, hidden**0.5, chance)
    embedding[:FIRST] = embedding[FIRST : 2 * FIRST]
    yield "model.embed_tokens.weight", embedding
    yield "model.norm.weight", torch.ones(hidden, dtype=torch.bfloat16)
    if not tied:
        # A special token's row is like no embedding, so it never follows.
        head = _matrix(shape.vocab, hidden, hidden**0.5, chance)
        followers = [next_token(token, shape.vocab) for token in range(FIRST, shape.vocab)]
        head[followers] = embedding[FIRST:]
        yield "lm_head.weight", head * (SURE / hidden)
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.{norm}.weight", torch.ones(hidden, dtype=torch.bfloat16)
        for each, rows, columns, gain in (
            ("self_attn.q_proj", hidden, hidden, GAIN),
            ("self_attn.k_proj", kv, hidden, GAIN),
            ("self_attn.v_proj", kv, hidden, GAIN),
            ("self_attn.o_proj", hidden, hidden, added),
            ("mlp.gate_proj", inner, hidden, GAIN),
            ("mlp.up_proj", inner, hidden, GAIN),
            ("mlp.down_proj", hidden, inner, added),
        ):
            yield f"{name}.{each}.weight", _matrix(rows, columns, gain, chance)


def _matrix(rows: int, columns: int, gain: float, chance: torch.Generator) -> torch.Tensor:
    """Normal elements, so that the products with rows of size 1 are of size ``gain``; bfloat16."""
    return torch.randn(rows, columns, generator=chance).mul_(gain / columns**0.5).to(torch.bfloat16)


def _write_drafters(folder: Path, spec: ModelSpec, digest: str, split: int) -> None:
    """An adapter, a fused one of the shipped form with 1.5 times its parameters, and Medusa's heads."""
    hidden = spec.hidden_size
    # Names of what the fused one may have more, with the rank of its MLP.
    more = {"keep": (hidden,), "up": (hidden // 2, hidden)}
    kinds = {
        "adapter": adapter_shapes(spec, "adapter"),
        "fused": adapter_shapes(spec, "fused", more),
        "medusa": medusa_shapes(spec),
    }
    chance = torch.Generator().manual_seed(SEED + 2)
    for kind, shapes in kinds.items():
        tensors = {
            name: _matrix(*shape, GAIN, chance) if len(shape) == 2 else torch.ones(shape, dtype=torch.bfloat16)
            for name, shape in shapes.items()
        }
        card: dict[str, Any] = {"about": "random weights: for what drafting costs, not for what it brings"}
        write_drafter(folder / f"{kind}.safetensors", kind, digest, split, card, tensors)


if __name__ == "__main__":
    print(made(Path(sys.argv[1])))
