"""Random-weight Llama checkpoints for benchmarks: what is measured is speed, and speed does not read the weights.

The weights are transformers' own small normal ones, so hidden states and logits stay finite over thousands of
positions. There is no end-of-sequence id: a greedy text runs to the length asked for.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from checkpoints import DEMO

SEED = 7


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama; four heads share a KV head, as in Llama 3.

    The sizes here give 193 million parameters in the layers and 16 million each in the embedding and the head.
    """

    hidden: int = 1024
    layers: int = 16
    intermediate: int = 3072
    heads: int = 16
    kv_heads: int = 4
    vocab: int = 16000
    positions: int = 2048

    @property
    def layer_parameters(self) -> int:
        """Parameters in the matrices of all layers."""
        attention = 2 * self.hidden + 2 * self._kv_size
        return self.layers * self.hidden * (attention + 3 * self.intermediate)

    @property
    def head_parameters(self) -> int:
        """Parameters in the matrix to the vocabulary."""
        return self.vocab * self.hidden

    def kv_bytes(self, item: int) -> int:
        """Bytes of the keys and values of one position in all layers, at ``item`` bytes a number."""
        return 2 * self.layers * self._kv_size * item

    @property
    def _kv_size(self) -> int:
        return self.hidden // self.heads * self.kv_heads


TINY = Shape(hidden=64, layers=2, intermediate=96, heads=4, kv_heads=2, vocab=512, positions=512)
"""A shape with which a benchmark runs to its end in seconds."""


def write_checkpoint(shape: Shape, folder: Path) -> Path:
    """Save a checkpoint of this shape in ``folder``, bfloat16, the same weights every time; returns the folder."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def speaking(shape: Shape, folder: Path) -> Path:
    """The same, with the demo model's tokenizer."""
    write_checkpoint(shape, folder)
    for file in DEMO.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def prompts(shape: Shape, lengths: list[int], seed: int) -> list[list[int]]:
    """Random prompts of these lengths; other ids with every seed, so that no cache of prefixes can help."""
    generator = torch.Generator().manual_seed(seed)
    # The first few ids are the special ones.
    return [torch.randint(3, shape.vocab, (length,), generator=generator).tolist() for length in lengths]


def mixed_lengths(count: int, mean: int) -> list[int]:
    """``count`` lengths spread evenly from a quarter of ``mean`` to seven quarters of it, shuffled; one is the mean.

    Together they are as long as ``count`` prompts of the mean length.
    """
    if count == 1:
        return [mean]
    low, high = mean // 4, mean * 7 // 4
    lengths = [low + round(index * (high - low) / (count - 1)) for index in range(count)]
    generator = torch.Generator().manual_seed(SEED)
    return [lengths[index] for index in torch.randperm(count, generator=generator).tolist()]
