"""The model's own byte-level BPE: any text goes in and comes back out unchanged, digits stand alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import training_stream
from .sample import Message

PAD, BOS, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIALS = [PAD, BOS, END, *ROLES.values()]
VOCABULARY = 2048
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def texts(seed: int, count: int) -> Iterator[str]:
    """The messages of the first training samples."""
    for _, sample in zip(range(count), training_stream(seed), strict=False):
        for message in sample.messages:
            yield message["content"]


def train_tokenizer(seed: int, count: int, vocabulary: int = VOCABULARY) -> Tokenizer:
    """Learn the merges from training text only."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(seed, count), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """Write the tokenizer with the settings that transformers reads beside it."""
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def special(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(number)


def encode_chat(tokenizer: Tokenizer, messages: list[Message]) -> tuple[list[int], list[bool]]:
    """The token ids of a conversation, and which of them the model itself has to say."""
    ids: list[int] = [special(tokenizer, BOS)]
    own: list[bool] = [False]
    end = special(tokenizer, END)
    for message in messages:
        body = [*tokenizer.encode(message["content"]).ids, end]
        ids += [special(tokenizer, ROLES[message["role"]]), *body]
        own += [False, *[message["role"] == "assistant"] * len(body)]
    return ids, own


def prompt_ids(tokenizer: Tokenizer, messages: list[Message]) -> list[int]:
    """The token ids of a conversation that the assistant is to go on with."""
    return [*encode_chat(tokenizer, messages)[0], special(tokenizer, ROLES["assistant"])]
