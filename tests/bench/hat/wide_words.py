"""The wide model's tokenizer: every token a word of its own, so that prompts can have any wanted length in tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, models, pre_tokenizers

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


def word(token: int) -> str:
    """What stands for an ordinary token: two syllables, and a third where there are too many tokens for two."""
    word, at = "", token - FIRST
    while at or not word:
        at, syllable = divmod(at, 100)
        word += "bdfghklmnprstvwxzcjq"[syllable // 5] + "aeiou"[syllable % 5]
    return word


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Files of a model folder."""
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
